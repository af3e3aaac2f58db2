"""The request's own rules: counts, slices, order, one end."""

from __future__ import annotations

import pytest
from simulation.builders import make_request
from trtdecode.request import FinishReason, Request, RequestState, TokenLogprob


def started(num_prompt: int = 5, max_tokens: int = 4) -> Request:
    request = make_request(list(range(num_prompt)), max_tokens)
    request.start(0, now=3.0)
    return request


def test_scheduling_chases_the_tokens() -> None:
    request = started()
    assert request.num_unscheduled_tokens == 5
    assert request.schedule(3) is False
    assert request.num_unscheduled_tokens == 2
    assert request.schedule(2) is True  # the prompt's end: a token will be chosen
    assert (request.num_pending, request.num_unscheduled_tokens) == (1, 1)
    request.append(100, now=4.0)
    assert (request.num_pending, request.num_unscheduled_tokens) == (0, 1)


def test_the_last_token_is_never_computed() -> None:
    request = started(max_tokens=2)
    assert request.schedule(5) is True
    assert request.schedule(1) is True
    assert request.num_unscheduled_tokens == 0
    request.append(1, now=0.0)
    request.append(2, now=0.0)
    assert (request.num_tokens, request.max_total_tokens, request.num_unscheduled_tokens) == (7, 7, 0)


@pytest.mark.parametrize("begin", range(8))
@pytest.mark.parametrize("end", range(9))
def test_slices_are_those_of_the_joined_lists(begin: int, end: int) -> None:
    request = started()
    request.output_ids = [10, 11, 12]
    assert request.token_slice(begin, end) == [0, 1, 2, 3, 4, 10, 11, 12][begin:end]


def test_preemption_keeps_tokens_and_first_times() -> None:
    request = started()
    request.schedule(5)
    request.complete(5)
    request.append(9, now=4.0)
    request.preempt()
    assert request.state is RequestState.WAITING
    assert (request.num_computed_tokens, request.num_scheduled_tokens) == (0, 0)
    assert (request.output_ids, request.num_preemptions) == ([9], 1)
    request.start(4, now=8.0)
    assert (request.start_time, request.num_cached_tokens, request.num_computed_tokens) == (3.0, 0, 4)
    request.append(10, now=9.0)
    assert (request.first_token_time, request.last_token_time) == (4.0, 9.0)


def test_order_is_priority_then_arrival_then_id() -> None:
    requests = [
        make_request(1, arrival_time=1.0, params={"priority": -2}),
        make_request(1, arrival_time=0.0),
        make_request(1, arrival_time=2.0),
        make_request(1, arrival_time=2.0),
        make_request(1, arrival_time=0.0, params={"priority": 1}),
    ]
    shuffled = [requests[index] for index in (3, 0, 4, 2, 1)]
    assert sorted(shuffled, key=lambda request: request.order_key) == requests


def test_it_ends_once() -> None:
    request = started()
    request.finish()
    with pytest.raises(AssertionError, match="finished twice"):
        request.finish()
    request.close(FinishReason.STOP)
    with pytest.raises(AssertionError, match="second final event"):
        request.close(FinishReason.STOP)


def test_prompt_logprobs_begin_with_none_and_take_each_position_once() -> None:
    request = make_request([1, 2, 3, 4], params={"prompt_logprobs": 0})
    entries = [TokenLogprob(token, -1.0, 1) for token in (2, 3, 4)]
    request.add_prompt_logprobs(1, entries[:1])
    assert request.needs_prompt_logits
    request.add_prompt_logprobs(1, entries[:2])  # again from the start, after a preemption
    request.add_prompt_logprobs(3, entries[2:])
    assert request.prompt_logprobs == [None, *entries]
    assert not request.needs_prompt_logits


def test_cumulative_logprob_adds_up() -> None:
    request = started()
    request.append(1, 0.0, TokenLogprob(1, -0.5, 1))
    request.append(2, 0.0, TokenLogprob(2, -1.25, 3))
    assert request.cumulative_logprob == -1.75


def test_the_representation_is_short() -> None:
    request = started()
    request.schedule(5)
    assert repr(request) == f"<Request {request.request_id} running 0/5/5+1>"
