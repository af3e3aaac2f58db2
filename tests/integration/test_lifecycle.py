"""Drain, unload, load, shutdown, and what `serve` does about a stub that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chain_model import cycle_text
from triton_fixtures import RunningServer, metric, wait_for
from triton_grpc import GrpcStream
from trtdecode.errors import ServerError
from trtdecode.server.client import ServerClient
from trtdecode.server.drain import drain, resume
from trtdecode.server.ports import Ports, free_ports
from trtdecode.server.processes import is_running, list_stubs, shm_regions

pytestmark = pytest.mark.triton_server

#: Runs until it is cancelled: a fast machine makes 4,000 tokens of the chain model in the time of a short drain.
LONG = {"text_input": "x", "max_tokens": 120_000, "temperature": 0.0, "stream": True}


@pytest.fixture
def server(
    make_server: Callable[..., RunningServer], make_repository: Callable[..., Path], endless_version: Path
) -> Iterator[RunningServer]:
    """A server of the test's own, with one model."""
    with make_server(make_repository({"chain": ""}, endless_version), exit_timeout_s=8) as running:
        yield running
    log = running.log_path.read_text()
    assert "Traceback" not in log


def state(server: RunningServer) -> str:
    return next(row.get("state", "") for row in server.client.index())


def finalized(server: RunningServer) -> int:
    return server.log_path.read_text().count("finalized, 0 requests left")


def test_drain_lets_running_requests_finish_and_unload_is_quick(server: RunningServer) -> None:
    stub = server.stub_pid("chain")
    with GrpcStream(server.grpc_address) as stream:
        answer = stream.send("chain", {**LONG, "max_tokens": 400})
        wait_for(lambda: answer.responses, what="the first token")
        [report] = drain("chain", server_pid=server.pid, timeout_s=30)
        assert (report.drained, report.live) == (True, 0)
        assert (answer.wait(1).text, answer.num_final) == (cycle_text(400), 1)
        refused = stream.send("chain", {"text_input": "x"}, request_id="late").wait()
        assert "draining" in refused.errors[0]
    server.client.unload("chain")
    wait_for(lambda: state(server) == "UNAVAILABLE", 10, "unloaded")
    wait_for(lambda: not is_running(stub), 5, "the stub gone")
    assert finalized(server) == 1
    server.client.load("chain")
    assert server.greedy("chain") == cycle_text(10)
    assert server.stub_pid("chain") != stub


def test_drain_can_cancel_and_be_called_off(server: RunningServer) -> None:
    with GrpcStream(server.grpc_address) as stream:
        answer = stream.send("chain", LONG)
        wait_for(lambda: answer.responses, what="the first token")
        [report] = drain("chain", server_pid=server.pid, cancel=True)
        assert report.drained
        answer.wait()
        assert answer.errors and "draining" in answer.errors[0]
    assert resume("chain", server_pid=server.pid) == 1
    assert server.greedy("chain") == cycle_text(10)


def test_a_drain_that_runs_out_of_time_cancels(server: RunningServer) -> None:
    with GrpcStream(server.grpc_address) as stream:
        answer = stream.send("chain", LONG)
        wait_for(lambda: answer.responses, what="the first token")
        [report] = drain("chain", server_pid=server.pid, timeout_s=0.3)
        assert report.drained and report.seconds < 3
        assert len(answer.wait(2).errors) == 1


def test_unload_after_a_completed_stream_is_quick(server: RunningServer) -> None:
    assert list(server.client.generate_stream("chain", {**LONG, "max_tokens": 5}))
    server.client.unload("chain")
    wait_for(lambda: state(server) == "UNAVAILABLE", 10, "unloaded")
    assert finalized(server) == 1


def test_unload_in_mid_stream_waits_for_the_stream(server: RunningServer) -> None:
    """The policy without a drain is Triton's: it lets an HTTP stream finish, refuses new work, then finalizes."""
    stream = server.client.generate_stream("chain", {**LONG, "max_tokens": 300})
    events = [next(stream)]
    server.client.unload("chain")
    assert server.client.generate("chain", {"text_input": "x"}).status in (400, 404)
    events += stream
    assert "".join(event["text_output"] for event in events) == cycle_text(300)
    wait_for(lambda: state(server) == "UNAVAILABLE", 10, "unloaded")
    assert finalized(server) == 1


SERVE = """
import json, sys
from pathlib import Path
from trtdecode.server.ports import Ports
from trtdecode.server.supervise import SupervisorOptions, serve
repository, log, ports = Path(sys.argv[1]), Path(sys.argv[2]), Ports(*map(int, sys.argv[3:6]))
options = SupervisorOptions(poll_s=0.2, first_backoff_s=0.1, drain_timeout_s=float(sys.argv[6]), exit_timeout_s=8)
ready = lambda server: print("ready", server.pid, flush=True)
sys.exit(serve(repository, ports=ports, log_path=log, options=options, on_ready=ready))
"""


class Serve:
    """`serve` in a process of its own."""

    def __init__(self, repository: Path, log: Path, drain_timeout_s: float) -> None:
        self.ports: Ports = free_ports()
        self.client = ServerClient("127.0.0.1", self.ports.http, self.ports.metrics)
        numbers = [str(port) for port in (self.ports.http, self.ports.grpc, self.ports.metrics)]
        command = [sys.executable, "-u", "-c", SERVE, str(repository), str(log), *numbers, str(drain_timeout_s)]
        self.output = log.with_suffix(".out")
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def lines(self, word: str) -> list[str]:
        return [line for line in self.output.read_text().splitlines() if word in line]

    def server_pid(self, start: int = 0) -> int:
        """The tritonserver of the given start; waits until it is ready."""
        wait_for(lambda: len(self.lines("ready ")) > start or self.process.poll() is not None, 120, "ready")
        return int(self.lines("ready ")[start].split()[1])

    def shm_regions(self) -> list[Path]:
        return shm_regions(f"trtdecode_{self.process.pid}_")

    def greedy(self) -> str:
        body = {"text_input": "x", "max_tokens": 10, "temperature": 0.0, "exclude_input_in_output": True}
        return str(self.client.generate("chain", body).json()["text_output"])


@pytest.fixture
def make_serve(
    make_server: Callable[..., RunningServer],
    make_repository: Callable[..., Path],
    endless_version: Path,
    tmp_path: Path,
) -> Iterator[Callable[[float], Serve]]:
    started: list[Serve] = []

    def make(drain_timeout_s: float) -> Serve:
        started.append(Serve(make_repository({"chain": ""}, endless_version), tmp_path / "serve.log", drain_timeout_s))
        return started[-1]

    yield make
    for serve in started:
        if serve.process.poll() is None:
            serve.process.terminate()
            serve.process.wait(60)


def test_serve_recovers_from_a_killed_stub(make_serve: Callable[[float], Serve]) -> None:
    serve = make_serve(5.0)
    first = serve.server_pid()
    stub = list_stubs(first)[0]
    stream = serve.client.generate_stream("chain", LONG, timeout_s=30)
    next(stream)
    os.kill(stub.pid, signal.SIGKILL)
    begin = time.monotonic()
    try:
        events = list(stream)  # ends with an error of Triton's, or by the connection
        assert not events or "finish_reason" not in events[-1]
    except OSError:
        pass
    assert time.monotonic() - begin < 20, "the client is not left hanging"
    second = serve.server_pid(1)
    assert second != first and not is_running(first)
    assert serve.greedy() == cycle_text(10)
    [line] = serve.lines("restarting tritonserver")
    # Triton 2.51 may itself crash on the stub that went away from under a stream; which is seen first is a race.
    assert f"pid {stub.pid}) died" in line or "tritonserver was ended by SIG" in line
    wait_for(lambda: 'restarts_total{instance="chain_0",model="chain",version="1"} 1' in serve.client.metrics(), 5)
    assert len(serve.shm_regions()) == 1, "only the new stub's region is left"
    serve.process.send_signal(signal.SIGTERM)
    assert serve.process.wait(30) == 0
    assert serve.shm_regions() == []


def test_sigterm_to_serve_lets_the_stream_finish(make_serve: Callable[[float], Serve]) -> None:
    serve = make_serve(30.0)
    pid = serve.server_pid()
    stream = serve.client.generate_stream("chain", {**LONG, "max_tokens": 400}, timeout_s=30)
    events = [next(stream)]
    serve.process.send_signal(signal.SIGTERM)
    events += stream
    assert "".join(event["text_output"] for event in events) == cycle_text(400)
    assert serve.process.wait(30) == 0
    assert not is_running(pid)
    assert serve.shm_regions() == []


def test_a_second_sigterm_cancels_and_the_bound_holds(make_serve: Callable[[float], Serve]) -> None:
    serve = make_serve(60.0)
    pid = serve.server_pid()
    with GrpcStream(f"127.0.0.1:{serve.ports.grpc}") as stream:
        answer = stream.send("chain", LONG)
        wait_for(lambda: answer.responses, what="the first token")
        serve.process.send_signal(signal.SIGTERM)
        wait_for(lambda: serve.lines("draining"), 5, "draining")
        begin = time.monotonic()
        serve.process.send_signal(signal.SIGTERM)
        assert answer.wait(10).errors
        assert serve.process.wait(20) == 0, "an open gRPC stream does not hold it up"
        assert time.monotonic() - begin < 15
    assert not is_running(pid)


def test_a_failed_load_is_the_reason_of_the_first_start(
    make_server: Callable[..., RunningServer], make_repository: Callable[[dict[str, str]], Path]
) -> None:
    repository = make_repository({"chain": 'parameters { key: "executer" value { string_value: "torch" } }'})
    with pytest.raises(ServerError, match="unknown key 'executer'; did you mean executor"):
        make_server(repository).start(60)


def test_a_damaged_file_is_refused_before_anything_is_served(
    make_server: Callable[..., RunningServer], make_repository: Callable[[dict[str, str]], Path]
) -> None:
    repository = make_repository({"chain": ""})
    weights = next((repository / "chain" / "1").glob("*.data"))
    content = bytearray(weights.read_bytes())
    content[1000] ^= 1
    weights.unlink()  # it is a hard link
    weights.write_bytes(content)
    with pytest.raises(ServerError, match="sha256 differs from the manifest"):
        make_server(repository).start(60)


def test_metrics_count_what_was_served(server: RunningServer) -> None:
    body = {"text_input": "abcd", "max_tokens": 6, "temperature": 0.0, "ignore_eos": True}
    for _ in range(3):
        assert server.client.generate("chain", body).status == 200
    expected = {
        "trtdecode_generation_tokens_total": 18,
        "trtdecode_prompt_tokens_total": 12,
        "trtdecode_requests_total": 3,
        "trtdecode_requests_running": 0,
        "trtdecode_requests_waiting": 0,
        "trtdecode_kv_blocks_used": 0,
        "trtdecode_preemptions_total": 0,
        "trtdecode_time_to_first_token_seconds_count": 3,
        "trtdecode_inter_token_seconds_count": 15,
        "trtdecode_server_restarts_total": 0,
    }
    wait_for(lambda: server.is_idle("chain"), 3, "idle")
    # Metrics are published one after another: one scrape may see half of a publication.
    wait_for(lambda: all(metric(server, name, "chain") >= value for name, value in expected.items()), 3, "all counted")
    assert {name: metric(server, name, "chain") for name in expected} == expected
    assert metric(server, "trtdecode_kv_blocks_total", "chain") > 0
    text = server.client.metrics()
    assert "# HELP trtdecode_generation_tokens_total Tokens generated." in text
    assert "# TYPE trtdecode_generation_tokens_total counter" in text
    assert "# TYPE trtdecode_time_to_first_token_seconds histogram" in text
