"""`scripts/demo` as a newcomer runs it. Its first run, which installs, is .ci/run's; these are second runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import environment
import pytest
from trtdecode.server.ports import Ports, free_ports

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "scripts" / "demo"
PYTHON_HINT = "With tritonclient (.venv/bin/python has it):"
installed = pytest.mark.skipif(not environment.read_stamp(), reason="needs the .venv that scripts/test makes")


def port_options(ports: Ports) -> list[str]:
    return [f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]


def refusal(*arguments: str) -> str:
    """What a run that must be refused at once says."""
    variables = {**os.environ, "TRTDECODE_PYTHON": sys.executable}  # also when .venv is the active environment
    result = subprocess.run([DEMO, *arguments], capture_output=True, text=True, timeout=30, env=variables)
    assert result.returncode != 0
    assert result.stdout == ""
    return result.stderr


def test_busy_port_is_one_line() -> None:
    ports = free_ports()
    with socket.create_server(("127.0.0.1", ports.grpc)):
        said = refusal("--once", "hi", *port_options(ports))
    assert said == f"demo: port {ports.grpc} on 127.0.0.1 is busy; choose another with --grpc-port\n"


def test_equal_ports_are_one_line() -> None:
    assert refusal("--http-port", "8001").startswith("demo: ports 8001, 8001 and 8002 must differ; see --http-port")


@pytest.mark.parametrize("arguments", [["--http-port", "0"], ["--http-port", "x"], ["--max-tokens", "0"], ["--what"]])
def test_wrong_options(arguments: list[str]) -> None:
    assert "scripts/demo: error: " in refusal(*arguments)


@installed
@pytest.mark.slow
@pytest.mark.triton_server
def test_once_prints_one_json_line_last() -> None:
    command = [DEMO, "--once", "What is the capital of France?", "--max-tokens", "24", *port_options(free_ports())]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    *_, spoken, last = result.stdout.splitlines()
    answer = json.loads(last)
    assert set(answer) == {"text", "num_output_tokens", "ttft_ms", "tokens_per_s"}
    assert "Paris" in answer["text"]
    assert 0 < answer["num_output_tokens"] <= 24
    assert answer["ttft_ms"] > 0
    assert answer["tokens_per_s"] > 0
    assert spoken == answer["text"].splitlines()[-1]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Ports]]:
    """A running demo, ended by Ctrl-C."""
    ports = free_ports()
    # Whoever runs the tests in the background of a shell has Ctrl-C ignored, and so would the demo.
    command = ["env", "--default-signal=INT", DEMO, "--prompt", "Say hello.", "--max-tokens", "8", *port_options(ports)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    yield process, ports
    if process.poll() is None:  # the test failed: SIGTERM, so that the demo ends its server
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert process.stdout is not None
    process.stdout.close()


@installed
@pytest.mark.slow
@pytest.mark.triton_server
def test_serves_until_ctrl_c(demo: tuple[subprocess.Popen[str], Ports]) -> None:
    process, ports = demo
    assert process.stdout is not None
    begin = time.monotonic()
    lines = iter(process.stdout.readline, "")
    next(line for line in lines if line == "> Say hello.\n")  # printed when the server is ready
    # Ten seconds is the target on an idle machine (the demo prints its time); this only bounds a hang.
    assert time.monotonic() - begin < 120
    said = [line.rstrip("\n") for line in iter_until(lines, "Ctrl-C ends it.\n")]
    (curl,) = [line.strip() for line in said if "curl -N" in line]
    answer = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=60)
    assert answer.stdout.startswith("data: {"), answer.stderr
    program = textwrap.dedent("\n".join(said[said.index(PYTHON_HINT) + 1 : said.index("In a terminal:")]))
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert len(answer.stdout) > 20, answer.stderr
    with urllib.request.urlopen(f"http://127.0.0.1:{ports.metrics}/metrics") as metrics:
        assert b"trtdecode_generation_tokens_total" in metrics.read()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports.http))


def iter_until(lines: Iterator[str], last: str) -> Iterator[str]:
    for line in lines:
        yield line
        if line == last:
            return
