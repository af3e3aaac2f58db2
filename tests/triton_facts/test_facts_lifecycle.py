"""Cancellation, unload, shutdown and death as Triton does them (DESIGN section 9)."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from trtdecode.errors import ServerError
from trtdecode.server.launch import TritonServer
from trtdecode.server.processes import is_running

pytestmark = pytest.mark.triton_server


def command(**fields: Any) -> dict[str, Any]:
    return {"text_input": json.dumps(fields)}


def wait_for(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.02)


def cancelled_at(server: TritonServer, name: str) -> int | None:
    report = json.loads(server.client.generate("probe", {"text_input": "report"}).json()["text_output"])
    found: int | None = report["cancelled"].get(name)
    return found


def state_of(server: TritonServer, model: str) -> str:
    return next(row.get("state", "") for row in server.client.index() if row["name"] == model)


def test_threads_send_and_update_metrics_while_execute_blocks(probe_server: TritonServer) -> None:
    stream = probe_server.client.generate_stream("probe", command(do="stream", name="t", n=8, interval=0.05))
    assert next(stream)["text_output"] == "t0 "
    blocked = threading.Thread(target=probe_server.client.generate, args=("probe", command(do="block", seconds=0.6)))
    blocked.start()
    time.sleep(0.1)
    assert len(list(stream)) == 7
    assert blocked.is_alive(), "the stream ended while execute was still busy"
    blocked.join()
    assert 'probe_probe_seconds_bucket{model="probe",le="0.1"}' in probe_server.client.metrics()


def test_http_disconnect_after_the_first_response_is_noticed_at_once(probe_server: TritonServer) -> None:
    stream = probe_server.client.generate_stream("probe", command(do="stream", name="gone", n=12, interval=0.1))
    next(stream)
    stream.close()
    wait_for(lambda: cancelled_at(probe_server, "gone") is not None)
    assert cancelled_at(probe_server, "gone") in (1, 2)


def test_http_disconnect_before_the_first_response_stays_unknown_until_it(probe_server: TritonServer) -> None:
    body = command(do="stream", name="silent", n=3, interval=0.1, silent=0.7)
    payload = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", probe_server.ports.http)) as connection:
        head = f"POST /v2/models/probe/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
        connection.sendall(head.encode() + payload)
    wait_for(lambda: cancelled_at(probe_server, "silent") is not None)
    assert cancelled_at(probe_server, "silent") in (1, 2), "is_cancelled() was false before the first response"


def test_preserve_ordering_holds_a_short_stream(probe_server: TritonServer) -> None:
    ends: dict[str, float] = {}

    def run(name: str, n: int) -> None:
        list(probe_server.client.generate_stream("ordered", command(do="stream", name=name, n=n, interval=0.05)))
        ends[name] = time.monotonic()

    long = threading.Thread(target=run, args=("long", 16))
    long.start()
    time.sleep(0.1)
    run("short", 1)
    long.join()
    assert ends["short"] > ends["long"] - 0.1


def test_unload_waits_for_a_grpc_stream_to_be_closed(probe_server: TritonServer) -> None:
    import tritonclient.grpc as grpcclient

    results: queue.Queue[Any] = queue.Queue()
    tensor = grpcclient.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([json.dumps({"do": "stream", "n": 1}).encode()], object))
    client = grpcclient.InferenceServerClient(probe_server.grpc_address)
    client.start_stream(lambda result, error: results.put(error or result))
    client.async_stream_infer("unloaded", [tensor])
    results.get(timeout=10)
    time.sleep(0.3)
    probe_server.client.unload("unloaded")
    time.sleep(1.0)
    waiting = state_of(probe_server, "unloaded")
    client.stop_stream()
    client.close()
    wait_for(lambda: state_of(probe_server, "unloaded") == "UNAVAILABLE")
    print(f"\nwith the stream open, one second after the unload: {waiting}")
    assert "FINALIZED unloaded" in probe_server.log_path.read_text()


def test_a_killed_stub_leaves_the_model_ready(make_probe_server: Callable[..., TritonServer]) -> None:
    """Whether its running stream ends with an error, or never, has been seen both ways."""
    with make_probe_server("killed") as server:
        stream = server.client.generate_stream("killed", command(do="stream", n=50, interval=0.1), timeout_s=4)
        next(stream)
        os.kill(server.stubs()[0].pid, signal.SIGKILL)
        try:
            print(f"\nthe stream of the killed stub ended with {list(stream)}")
        except TimeoutError:
            print("\nthe stream of the killed stub did not end")
        assert state_of(server, "killed") == "READY"
        answer = server.client.generate("killed", {"text_input": "report"}, 10)
        assert (answer.status, b"is not healthy" in answer.body) == (400, True)


def test_sigterm_in_mid_stream_outlasts_the_exit_timeout(make_probe_server: Callable[..., TritonServer]) -> None:
    server = make_probe_server("probe", exit_timeout_s=1)
    server.start()
    stub = server.stubs()[0]
    stream = server.client.generate_stream("probe", command(do="stream", n=60, interval=0.1), timeout_s=5)
    next(stream)
    begin = time.monotonic()
    os.kill(server.pid, signal.SIGTERM)
    wait_for(lambda: not server.is_running or time.monotonic() - begin > 2.5, 4)
    print(f"\n2.5 s after SIGTERM: server running {server.is_running}, stub running {is_running(stub.pid)}")
    assert server.is_running or is_running(stub.pid)
    stream.close()
    server.kill()
    assert not is_running(stub.pid)


def test_a_warm_up_answered_with_an_error_fails_the_load(make_probe_server: Callable[..., TritonServer]) -> None:
    """And often takes the server with it: 2.51 was seen to end by SIGSEGV."""
    with pytest.raises(ServerError) as caught:
        make_probe_server("warm_error").start(60)
    print(f"\n{caught.value}")
    assert "failed to run warmup sample 'empty': no text" in str(caught.value) or "crashed" in str(caught.value)
