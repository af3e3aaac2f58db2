"""CASES group E over the real server: C29 (one-response end points), C31 (unload and shutdown)."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chain_model import cycle_text
from triton_fixtures import RunningServer, wait_for
from triton_grpc import GrpcStream, tensor
from trtdecode.server.drain import drain
from trtdecode.server.processes import is_running, shm_regions

pytestmark = pytest.mark.triton_server

Post = Callable[[str], None]
BODY = {"text_input": "x", "max_tokens": 5, "temperature": 0.0, "exclude_input_in_output": True}


def test_c29_infer_refuses_with_a_readable_message(chain_server: RunningServer, post: Post) -> None:
    data = {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["x"]}]}
    answer = chain_server.client.call("POST", "/v2/models/chain/infer", data)
    assert answer.status in (400, 501)
    assert "decoupled" in answer.json()["error"]


def test_c29_unary_grpc_is_unimplemented(chain_server: RunningServer, post: Post) -> None:
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    with InferenceServerClient(chain_server.grpc_address) as client, pytest.raises(InferenceServerException) as caught:
        client.infer("chain", [tensor("text_input", "x")])
    assert "UNIMPLEMENTED" in str(caught.value.status())
    assert "decoupled" in str(caught.value)


@pytest.mark.parametrize(("prompt", "text"), [("x", cycle_text(5)), ("x.", ""), ("x!", "ABCDE")])
def test_c29_generate_without_stream_is_one_body(chain_server: RunningServer, prompt: str, text: str) -> None:
    answer = chain_server.client.generate("chain", {**BODY, "text_input": prompt})
    assert (answer.status, answer.json()["text_output"]) == (200, text)


def test_c29_generate_with_stream_is_an_error_or_the_whole_body(chain_server: RunningServer, post: Post) -> None:
    """Triton's error when there were several responses; the body when all deltas went out as one."""
    for max_tokens in (1, 5, 50):
        answer = chain_server.client.generate("chain", {**BODY, "stream": True, "max_tokens": max_tokens}).json()
        assert "exactly 1 response" in answer.get("error", "") or answer["text_output"] == cycle_text(max_tokens)


@pytest.mark.parametrize(("prompt", "text"), [("x", cycle_text(5)), ("x.", "")])
def test_c29_generate_stream_without_stream_is_one_event(chain_server: RunningServer, prompt: str, text: str) -> None:
    events = list(chain_server.client.generate_stream("chain", {**BODY, "text_input": prompt, "stream": False}))
    assert [event["text_output"] for event in events] == [text]


def test_c29_errors_of_both_end_points_name_the_field(chain_server: RunningServer, post: Post) -> None:
    bad = {**BODY, "max_tokens": -1}
    assert "max_tokens: got -1" in chain_server.client.generate("chain", bad).json()["error"]
    with pytest.raises(Exception, match="max_tokens: got -1"):
        list(chain_server.client.generate_stream("chain", {**bad, "stream": True}))


@pytest.fixture
def server(
    make_server: Callable[..., RunningServer], make_repository: Callable[..., Path], endless_version: Path
) -> Iterator[RunningServer]:
    with make_server(make_repository({"chain": ""}, endless_version), exit_timeout_s=10) as running:
        yield running


def wait_unloaded(server: RunningServer, stub: int) -> None:
    wait_for(lambda: server.client.index()[0].get("state") == "UNAVAILABLE", 10, "left UNLOADING")
    wait_for(lambda: not is_running(stub), 5, "stub gone")
    assert server.log_path.read_text().count("finalized, 0 requests left") == 1


def test_c31_unload_after_streams_of_each_kind_then_load(server: RunningServer) -> None:
    list(server.client.generate_stream("chain", {**BODY, "stream": True}))
    with GrpcStream(server.grpc_address) as stream:
        stream.send("chain", {"text_input": "x", "max_tokens": 5, "stream": True}).wait()
    stub = server.stub_pid("chain")
    server.client.unload("chain")
    wait_unloaded(server, stub)
    server.client.load("chain")
    assert server.greedy("chain") == cycle_text(10)


def test_c31_drain_then_unload_with_one_running_and_one_waiting(
    make_server: Callable[..., RunningServer], make_repository: Callable[..., Path], endless_version: Path
) -> None:
    """Policy: drain (or drain with cancel) before an unload; each request gets one final response or error."""
    config = 'parameters { key: "max_num_seqs" value { string_value: "1" } }'
    with make_server(make_repository({"chain": config}, endless_version)) as server:
        stub = server.stub_pid("chain")
        with GrpcStream(server.grpc_address) as first, GrpcStream(server.grpc_address) as second:
            a = first.send("chain", {"text_input": "x", "max_tokens": 120_000, "temperature": 0.0, "stream": True})
            wait_for(lambda: a.responses, what="A running")
            b = second.send("chain", {"text_input": "x", "max_tokens": 5, "temperature": 0.0, "stream": True})
            time.sleep(0.3)
            [report] = drain("chain", server_pid=server.pid, cancel=True)
            assert report.drained
            assert len(a.wait(2).errors) == len(b.wait(2).errors) == 1
            assert b.responses == []
        server.client.unload("chain")
        wait_unloaded(server, stub)


def test_c31_sigterm_in_mid_stream_after_a_drain(server: RunningServer) -> None:
    """What `serve` does: drain, then SIGTERM. Without the drain the server outstays its own timeout."""
    stub, pid = server.stub_pid("chain"), server.pid
    body = {**BODY, "max_tokens": 120_000, "stream": True}
    stream = server.client.generate_stream("chain", body)
    events = [next(stream)]
    [report] = drain("chain", server_pid=server.pid, cancel=True)
    assert report.drained
    begin = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    events += stream
    assert "error" in events[-1], "the client is told; it does not hang"
    assert server.stop() == 0
    assert time.monotonic() - begin < 10
    assert not is_running(stub)
    assert shm_regions(server.shm_prefix) == []


def test_c31_stop_without_a_drain_leaves_nothing_behind(server: RunningServer) -> None:
    stub = server.stub_pid("chain")
    stream = server.client.generate_stream("chain", {**BODY, "max_tokens": 4000, "stream": True})
    next(stream)
    server.stop(timeout_s=3)
    assert not is_running(stub)
    assert shm_regions(server.shm_prefix) == []
    ended: list[Any] = []
    with contextlib.suppress(OSError, http.client.HTTPException):
        ended = list(stream)
    assert all("text_output" in event or "error" in event for event in ended)
