"""`trtdecode serve --openai`: one command, two servers, one end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from chain_model import cycle_text
from triton_fixtures import RunningServer, wait_for
from trtdecode.cli import main
from trtdecode.server.ports import free_ports
from trtdecode.server.processes import is_running, listener_of

pytestmark = pytest.mark.triton_server

COMMAND = [sys.executable, "-u", "-c", "import sys; from trtdecode.cli import main; sys.exit(main())", "serve"]
LOG_AND_DRAIN = ["--drain-timeout", "120", "--log-file"]
BODY = {"model": "chain", "prompt": "x", "temperature": 0}


class Served:
    """The command in a process of its own."""

    def __init__(self, repository: Path, folder: Path) -> None:
        ports, self.port = free_ports(), free_ports().http
        self.output = folder / "serve.out"
        self.ports = (ports.http, ports.grpc, ports.metrics, self.port)
        names = ("--http-port", "--grpc-port", "--metrics-port", "--openai-port")
        options = [text for name, port in zip(names, self.ports, strict=True) for text in (name, str(port))]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*COMMAND, str(repository), "--openai", *options, *LOG_AND_DRAIN, str(folder / "triton.log")],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.url = f"http://127.0.0.1:{self.port}"

    def is_up(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def served(
    make_server: Callable[..., RunningServer],
    make_repository: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    running = Served(make_repository({"chain": ""}), tmp_path_factory.mktemp("serve"))
    try:
        wait_for(lambda: running.is_up() or running.process.poll() is not None, 120, "gateway up")
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            running.process.wait(60)


def text_of(lines: Iterator[str]) -> str:
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert not [event for event in events if "error" in event]
    return "".join(choice["text"] for event in events for choice in event["choices"])


def test_a_busy_port_is_said_before_anything_starts(
    served: Served, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["serve", str(tmp_path / "empty"), "--openai", "--openai-port", str(served.port)]) == 1
    assert f"port {served.port} of 127.0.0.1 is busy" in capsys.readouterr().err


def test_both_serve_and_one_signal_ends_both_without_losing_an_answer(served: Served) -> None:
    answer = httpx.post(f"{served.url}/v1/completions", json={**BODY, "max_tokens": 5}, timeout=30).json()
    assert answer["choices"][0]["text"] == cycle_text(5)

    first = listener_of(served.port)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: listener_of(served.port) not in (None, first), 30, "the gateway is started again")
    wait_for(served.is_up, 30, "it answers")
    second = listener_of(served.port)

    watching = threading.Event()

    def watch() -> None:  # an open page; its stream has no end of its own
        with httpx.stream("GET", f"{served.url}/v1/engine", timeout=60) as engine:
            for _ in engine.iter_lines():
                watching.set()

    page = threading.Thread(target=watch)
    page.start()
    assert watching.wait(30)
    with httpx.stream(
        "POST", f"{served.url}/v1/completions", json={**BODY, "max_tokens": 1500, "stream": True}, timeout=120
    ) as response:
        lines = response.iter_lines()
        head = next(lines)
        served.process.send_signal(signal.SIGTERM)
        assert text_of(iter([head, *lines])) == cycle_text(1500)
    assert served.process.wait(120) == 0
    page.join(10)
    assert not page.is_alive()
    assert not is_running(second)
    assert [port for port in served.ports if listener_of(port)] == []
    output = served.output.read_text()
    assert f"gateway on http://127.0.0.1:{served.port}" in output
    assert "the gateway ended with -9; starting it again" in output
    assert "drained after" in output
    assert "killing it" not in output
