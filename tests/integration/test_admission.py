"""Waiting, order, deadlines, cancellation: what our admission promises, over the real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from chain_model import cycle_text
from triton_fixtures import RunningServer, metric, wait_for
from triton_grpc import Answer, GrpcStream

pytestmark = pytest.mark.triton_server

SMALL = "chain_small"  # one runs, two wait, priorities 1 to 4
ENDLESS = 130_000
GREEDY = {"temperature": 0.0, "stream": True}


def waiting(server: RunningServer) -> float:
    return metric(server, "trtdecode_requests_waiting", SMALL)


@pytest.fixture
def busy(chain_server: RunningServer, post: Callable[[str], None]) -> Iterator[tuple[GrpcStream, Answer]]:
    """A request that runs until its stream is closed."""
    with GrpcStream(chain_server.grpc_address) as stream:
        answer = stream.send(SMALL, {"text_input": "x", "max_tokens": ENDLESS, **GREEDY})
        wait_for(lambda: answer.responses, what="the first token")
        yield stream, answer
        stream.close(cancel=True)


def test_full_queue_is_refused_at_once(chain_server: RunningServer, busy: tuple[GrpcStream, Answer]) -> None:
    streams = [GrpcStream(chain_server.grpc_address).__enter__() for _ in range(3)]
    answers = [stream.send(SMALL, {"text_input": "x", "max_tokens": 2, **GREEDY}) for stream in streams[:2]]
    wait_for(lambda: waiting(chain_server) == 2, what="two waiting")
    refused = streams[2].send(SMALL, {"text_input": "x", "max_tokens": 2, **GREEDY}).wait()
    assert not busy[1].done.is_set(), "refused while the queue is full, not when it has room"
    assert refused.errors and "queue is full (max_queue_size 2)" in refused.errors[0]
    http = chain_server.client.generate(SMALL, {"text_input": "x"})
    assert (http.status, b"queue is full" in http.body) == (400, True), "Triton 2.51 answers 400 whatever the code"
    busy[0].close(cancel=True)
    for answer, stream in zip(answers, streams[:2], strict=True):
        assert answer.wait().text == cycle_text(2)
        stream.close()
    streams[2].close()


def test_priority_decides_who_starts_next(chain_server: RunningServer, post: Callable[[str], None]) -> None:
    """One start in eight belongs to the oldest, whatever its priority: of three rounds at most one can be that."""
    wins = sum(high_starts_first(chain_server) for _ in range(3))
    assert wins >= 2
    refused = chain_server.client.generate(SMALL, {"text_input": "x", "priority": 9})
    assert b"priority: got 9; must be from 1 to 4" in refused.body


def high_starts_first(server: RunningServer) -> bool:
    """A runs; B (low) and then C (high) wait; A ends. Who has the first token?"""
    with GrpcStream(server.grpc_address) as first, GrpcStream(server.grpc_address) as stream:
        running = first.send(SMALL, {"text_input": "x", "max_tokens": ENDLESS, **GREEDY})
        wait_for(lambda: running.responses, what="the first token")
        send = {"text_input": "x", "max_tokens": 40, **GREEDY}
        late = stream.send(SMALL, {**send, "sampling_parameters": '{"priority": 4}'}, request_id="low")
        wait_for(lambda: waiting(server) == 1, what="the low one waiting")
        soon = stream.send(SMALL, {**send, "sampling_parameters": '{"priority": 1}'}, request_id="high")
        wait_for(lambda: waiting(server) == 2, what="both waiting")
        first.close(cancel=True)
        soon.wait()
        late.wait()
        assert soon.text == late.text == cycle_text(40)
        return soon.times[0] < late.times[0]


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_deadline_ends_a_request(chain_server: RunningServer, post: Callable[[str], None], state: str) -> None:
    with GrpcStream(chain_server.grpc_address) as first, GrpcStream(chain_server.grpc_address) as second:
        blocker = first.send(SMALL, {"text_input": "x", "max_tokens": ENDLESS, **GREEDY})
        wait_for(lambda: blocker.responses, what="the first token")
        if state == "running":
            first.close(cancel=True)
        begin = time.monotonic()
        answer = second.send(SMALL, {"text_input": "x", "max_tokens": ENDLESS, **GREEDY}, timeout=400_000).wait()
        assert time.monotonic() - begin > 0.3
        assert len(answer.errors) == 1
        assert f"deadline of 400 ms exceeded while {state}" in answer.errors[0]
        assert bool(answer.responses) is (state == "running")
        first.close(cancel=True)
    post(SMALL)


def test_generate_has_a_timeout_too(chain_server: RunningServer, busy: tuple[GrpcStream, Answer]) -> None:
    answer = chain_server.client.generate(SMALL, {"text_input": "x", "timeout": 300_000})
    assert b"deadline of 300 ms exceeded while waiting" in answer.body
    wrong = chain_server.client.generate(SMALL, {"text_input": "x", "timeout": "soon"})
    assert (wrong.status, b"timeout" in wrong.body) == (400, True)


def test_cancel_while_waiting_frees_the_place(chain_server: RunningServer, busy: tuple[GrpcStream, Answer]) -> None:
    time.sleep(0.5)  # metrics are published a few times a second
    prompt_tokens = metric(chain_server, "trtdecode_prompt_tokens_total", SMALL)
    second = GrpcStream(chain_server.grpc_address).__enter__()
    second.send(SMALL, {"text_input": "abc", **GREEDY})
    wait_for(lambda: waiting(chain_server) == 1, what="one waiting")
    second.close(cancel=True)
    wait_for(lambda: waiting(chain_server) == 0, 1.5, "the place free again")
    assert metric(chain_server, "trtdecode_prompt_tokens_total", SMALL) == prompt_tokens, "nothing was computed for it"
    assert not busy[1].done.is_set(), "its neighbour goes on"


def test_grpc_cancel_in_mid_stream_frees_the_blocks(chain_server: RunningServer, post: Callable[[str], None]) -> None:
    stream = GrpcStream(chain_server.grpc_address).__enter__()
    answer = stream.send(SMALL, {"text_input": "x", "max_tokens": ENDLESS, **GREEDY})
    wait_for(lambda: len(answer.responses) > 3, what="some tokens")
    wait_for(lambda: chain_server.used_blocks(SMALL) > 0, what="blocks in use")
    stream.close(cancel=True)
    wait_for(lambda: chain_server.is_idle(SMALL), 3, "blocks back")


def test_http_disconnect_in_mid_stream_frees_the_blocks(
    chain_server: RunningServer, post: Callable[[str], None]
) -> None:
    body = {"text_input": "x", "max_tokens": ENDLESS, "temperature": 0.0, "stream": True}
    stream = chain_server.client.generate_stream(SMALL, body)
    for _ in range(3):
        next(stream)
    wait_for(lambda: chain_server.used_blocks(SMALL) > 0, what="blocks in use")
    stream.close()
    wait_for(lambda: chain_server.is_idle(SMALL), 3, "blocks back")
    assert metric(chain_server, "trtdecode_requests_finished_total", SMALL, reason="cancelled") > 0


def test_32_clients_at_once_each_get_their_own_text(chain_server: RunningServer, post: Callable[[str], None]) -> None:
    texts: dict[int, str] = {}

    def run(index: int) -> None:
        body = {"text_input": f"client {index}", "max_tokens": 5 + index, "temperature": 0.0, "stream": True}
        events = chain_server.client.generate_stream("chain", body)
        texts[index] = "".join(event["text_output"] for event in events)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert texts == {index: cycle_text(5 + index) for index in range(32)}
