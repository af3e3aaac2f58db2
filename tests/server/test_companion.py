"""A companion process: replaced when it dies, ended in order, killed when it will not end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from triton_fixtures import wait_for
from trtdecode.server.companion import Companion
from trtdecode.server.processes import is_running

POLITE = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); {ready}; time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {ready}; time.sleep(600)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], tuple[Companion, list[str]]]]:
    """Starts a program and waits until it has set its signal handler; with it come the lines of its log."""
    made: list[Companion] = []

    def run(program: str) -> tuple[Companion, list[str]]:
        ready = tmp_path / f"ready{len(made)}"
        lines: list[str] = []
        text = program.format(ready=f"open({str(ready)!r}, 'w').close()")
        made.append(Companion("helper", [sys.executable, "-c", text], log=lines.append))
        made[-1].start()
        wait_for(ready.exists, 30, "the program is ready")
        return made[-1], lines

    yield run
    for companion in made:
        companion.begin_end()
        companion.wait_end(0.1)


def test_it_is_started_once_and_again_when_it_dies(start: Callable[[str], tuple[Companion, list[str]]]) -> None:
    companion, lines = start(POLITE)
    first = companion.pid
    companion.start()
    assert companion.pid == first
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: companion.pid != first and is_running(companion.pid), 30, "another process")
    assert lines == ["the helper ended with -9; starting it again in 0.5 s"]


def test_it_ends_when_told_to_and_is_not_started_again(start: Callable[[str], tuple[Companion, list[str]]]) -> None:
    companion, lines = start(POLITE)
    companion.begin_end()
    companion.wait_end(30)
    assert not is_running(companion.pid)
    time.sleep(0.7)  # longer than the first pause before a start
    assert not is_running(companion.pid)
    assert lines == []


def test_one_that_will_not_end_is_killed(start: Callable[[str], tuple[Companion, list[str]]]) -> None:
    companion, lines = start(STUBBORN)
    companion.begin_end()
    companion.wait_end(0.3)
    assert not is_running(companion.pid)
    assert lines == ["the helper did not end within 0.3 s; killing it"]


def test_ending_what_was_never_started_is_nothing() -> None:
    companion = Companion("helper", ["false"])
    companion.begin_end()
    companion.wait_end(0.1)
    companion.start()
    assert companion.pid is None
