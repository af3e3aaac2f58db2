"""CASES group D over the real server: C23 (request ids), C25 (cancelling what waits)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from chain_model import cycle_text
from triton_fixtures import RunningServer, metric, wait_for
from triton_grpc import GrpcStream, ask

pytestmark = pytest.mark.triton_server

Post = Callable[[str], None]
GREEDY = {"temperature": 0.0, "stream": True}


def test_c23_two_live_requests_with_one_id_both_complete(chain_server: RunningServer, post: Post) -> None:
    """Policy: the caller's id is for logs; it is never a key."""
    with GrpcStream(chain_server.grpc_address) as first, GrpcStream(chain_server.grpc_address) as second:
        a = first.send("chain", {"text_input": "x", "max_tokens": 64, **GREEDY}, request_id="id")
        time.sleep(0.1)
        b = second.send("chain", {"text_input": "one", "max_tokens": 64, **GREEDY}, request_id="id")
        assert a.wait().text == cycle_text(64)
        assert b.wait().text == cycle_text(65).removeprefix("one")
        again = second.send("chain", {"text_input": "x", "max_tokens": 3, **GREEDY}, request_id="id")
        assert again.wait().text == cycle_text(3), "an id can be used again at once"


def test_c23_cancelling_one_leaves_its_namesake(chain_server: RunningServer, post: Post) -> None:
    with GrpcStream(chain_server.grpc_address) as first, GrpcStream(chain_server.grpc_address) as second:
        a = first.send("chain", {"text_input": "x", "max_tokens": 4000, **GREEDY}, request_id="id")
        b = second.send("chain", {"text_input": "x", "max_tokens": 300, **GREEDY}, request_id="id")
        wait_for(lambda: a.responses and b.responses, what="both running")
        first.close(cancel=True)
        assert b.wait().text == cycle_text(300)
    assert metric(chain_server, "trtdecode_requests_running", "chain") >= 0


@pytest.mark.parametrize("request_id", ["", "x" * 10_000, "with spaces", "🌶", "../../etc"])
def test_c23_any_id_will_do(chain_server: RunningServer, post: Post, request_id: str) -> None:
    inputs = {"text_input": "x", "max_tokens": 4, **GREEDY}
    assert ask(chain_server.grpc_address, "chain", inputs, request_id=request_id).text == cycle_text(4)


def test_c25_cancelling_a_waiting_request(chain_server: RunningServer, post: Post) -> None:
    """At most one runs: A runs until it is cancelled, B waits and is cancelled, C waits behind B and starts then."""
    waiting = lambda: metric(chain_server, "trtdecode_requests_waiting", "chain_small")  # noqa: E731
    streams = [GrpcStream(chain_server.grpc_address).__enter__() for _ in range(3)]
    a = streams[0].send("chain_small", {"text_input": "x", "max_tokens": 120_000, **GREEDY})
    wait_for(lambda: a.responses, what="A running")
    streams[1].send("chain_small", {"text_input": "abc", "max_tokens": 5, **GREEDY})
    wait_for(lambda: waiting() == 1, what="B waiting")
    c = streams[2].send("chain_small", {"text_input": "x", "max_tokens": 5, **GREEDY})
    wait_for(lambda: waiting() == 2, what="C waiting")
    prompt_tokens = metric(chain_server, "trtdecode_prompt_tokens_total", "chain_small")
    streams[1].close(cancel=True)
    wait_for(lambda: waiting() == 1, 1.5, "B gone")
    assert not c.responses, "A runs"
    streams[0].close(cancel=True)
    assert c.wait().text == cycle_text(5)
    time.sleep(0.5)
    assert metric(chain_server, "trtdecode_prompt_tokens_total", "chain_small") == prompt_tokens + 1, "only C's token"
    streams[2].close()


def test_c25_neighbour_cancel_right_after_sending(chain_server: RunningServer, post: Post) -> None:
    for _ in range(20):
        stream = GrpcStream(chain_server.grpc_address).__enter__()
        stream.send("chain", {"text_input": "x", "max_tokens": 4000, **GREEDY})
        stream.close(cancel=True)


def test_c25_neighbour_a_waiting_http_client_that_left_costs_one_step(chain_server: RunningServer, post: Post) -> None:
    """Triton notices an HTTP disconnect only once a response has been sent: the request starts, and ends at once."""
    with GrpcStream(chain_server.grpc_address) as stream:
        a = stream.send("chain_small", {"text_input": "x", "max_tokens": 8000, **GREEDY})
        wait_for(lambda: a.responses, what="A running")
        generated = metric(chain_server, "trtdecode_generation_tokens_total", "chain_small")
        body = {"text_input": "x", "max_tokens": 120_000, "temperature": 0.0, "stream": True}
        with pytest.raises(TimeoutError):
            next(chain_server.client.generate_stream("chain_small", body, timeout_s=0.3))
        assert a.wait(120).text == cycle_text(8000)
    wait_for(lambda: chain_server.is_idle("chain_small"), 5, "idle")
    # Nearly none of its 120,000 tokens; how many depends on when Triton looks.
    assert metric(chain_server, "trtdecode_generation_tokens_total", "chain_small") - generated < 8000 + 20_000
