"""One line per step on the terminal, everything else in a log file. Standard library only."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_TAIL_LINES = 12


class StepFailed(Exception):
    """A step's command failed; the text is what the user should read."""


class Progress:
    """Writes `[ elapsed ] what  took` to stderr, so that stdout stays free for the answer.

    On a terminal the running step's clock ticks in place; elsewhere a step prints one line when it ends.
    """

    def __init__(self, log_file: Path) -> None:
        self.log_file = log_file
        self._started = time.monotonic()
        self._tty = sys.stderr.isatty()
        log_file.parent.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Times the body; the line says so when it failed."""
        begin = time.monotonic()
        done = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(what, begin, done), daemon=True)
        ticker.start()
        outcome = "failed after"
        try:
            yield
            outcome = "took"
        finally:
            done.set()
            ticker.join()
            now = time.monotonic()
            self._write(f"[{now - self._started:6.1f} s] {what} {outcome} {now - begin:.1f} s", final=True)

    def say(self, text: str) -> None:
        """One line without a duration."""
        self._write(f"[{time.monotonic() - self._started:6.1f} s] {text}", final=True)

    def run(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, hint: str = "") -> None:
        """Runs a command with its output in the log.

        Raises:
            StepFailed: with the end of the output, the log's path and `hint`.
        """
        with self.log_file.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            start = log.tell()
            code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env).returncode
        if code != 0:
            with self.log_file.open("rb") as log:
                log.seek(start)
                tail = log.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
            raise StepFailed(
                "\n".join([*tail, f"exit status {code}; whole output: {self.log_file}", *filter(None, [hint])])
            )

    def _tick(self, what: str, begin: float, done: threading.Event) -> None:
        # Off a terminal a long step still says that it lives, once in a while.
        period = 0.2 if self._tty else 30.0
        while not done.wait(period):
            now = time.monotonic()
            self._write(f"[{now - self._started:6.1f} s] {what} ... {now - begin:.0f} s", final=not self._tty)

    def _write(self, line: str, *, final: bool) -> None:
        if self._tty:
            sys.stderr.write(f"\r\x1b[K{line}" + ("\n" if final else ""))
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
