"""The loop as its callers see it: events, refusals, deadlines, cancellation, prompt logprobs. Both loops alike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from loop_fixtures import Clock, Words, alone, assert_nothing_left, steps
from simulation.builders import Events, collect, make_loop, make_request, make_spec
from simulation.fake_executor import FakeExecutor
from simulation.fake_sampler import FakeSampler
from simulation.world import VOCAB_SIZE
from trtdecode.errors import (
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    QueueFull,
    RequestCancelled,
)
from trtdecode.executor.base import Batch, BatchResult
from trtdecode.loop import Loop
from trtdecode.request import FinishReason, Request, TokenLogprob

# -- answers --------------------------------------------------------------------------------------------------------


def test_one_request(loop_class: Callable[..., Loop]) -> None:
    loop, events = make_loop(loop_class=loop_class), Events()
    request = make_request(5, 3, on_event=events.append)
    loop.submit(request)
    steps(loop)
    token_ids, final = collect(events)
    assert token_ids == alone(request) == request.output_ids
    assert [len(event.token_ids) for event in events] == [1, 1, 1]
    assert (final.finish_reason, final.error) == (FinishReason.LENGTH, None)
    assert_nothing_left(loop)


def test_a_request_in_company_gets_what_it_gets_alone(loop_class: Callable[..., Loop]) -> None:
    loop = make_loop(num_blocks=40, loop_class=loop_class, max_num_seqs=5, max_num_batched_tokens=16)
    requests = [make_request([i, *range(i * 2)], 5 + i, seed=i) for i in range(12)]
    for request in requests:
        loop.submit(request)
    steps(loop)
    assert [request.output_ids for request in requests] == [alone(request) for request in requests]
    assert_nothing_left(loop)


def test_case_c27_preempted_requests_lose_and_repeat_nothing(loop_class: Callable[..., Loop]) -> None:
    """A pool of 128 tokens, three prompts of 40, 60 new tokens each: somebody is preempted, one of them twice."""
    loop = make_loop(num_blocks=33, loop_class=loop_class)
    events: list[Events] = [[] for _ in range(3)]
    requests = [make_request([i] * 40, 60, seed=5, on_event=events[i].append) for i in range(3)]
    for request in requests:
        loop.submit(request)
    steps(loop, 500)
    for request, got in zip(requests, events, strict=True):
        token_ids, final = collect(got)
        assert token_ids == alone(request)
        assert (len(token_ids), final.finish_reason) == (60, FinishReason.LENGTH)
    assert max(request.num_preemptions for request in requests) >= 1
    assert loop.metrics.counters["trtdecode_preemptions_total"] >= 1
    assert_nothing_left(loop)


def test_eos_and_stop_tokens_end_a_request(loop_class: Callable[..., Loop]) -> None:
    third = alone(make_request(5, 9))[2]
    loop, events = make_loop(loop_class=loop_class), Events()
    loop.submit(make_request(5, 9, params={"stop_token_ids": (third,)}, on_event=events.append))
    steps(loop)
    token_ids, final = collect(events)
    assert (len(token_ids), token_ids[-1], final.finish_reason) == (3, third, FinishReason.STOP)

    loop, events = make_loop(loop_class=loop_class, spec=make_spec(eos=(third,))), Events()
    loop.submit(make_request(5, 9, ignore_eos=False, on_event=events.append))
    steps(loop)
    assert len(collect(events)[0]) == 3
    assert_nothing_left(loop)


def test_text_and_stop_strings(loop_class: Callable[..., Loop]) -> None:
    loop, events = make_loop(loop_class=loop_class), Events()
    request = make_request(5, 9, output=Words(stop_at=3), on_event=events.append)
    loop.submit(request)
    steps(loop)
    token_ids, final = collect(events)
    assert ([event.text for event in events], final.finish_reason) == (["w1 ", "w2 ", "w3 "], FinishReason.STOP)
    assert token_ids == request.output_ids == alone(request)[:3]
    assert_nothing_left(loop)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_tokens_text_is_left_out_unless_asked_for(loop_class: Callable[..., Loop], include: bool) -> None:
    second = alone(make_request(5, 9))[1]
    loop, events = make_loop(loop_class=loop_class), Events()
    params = {"stop_token_ids": (second,), "include_stop_str_in_output": include}
    loop.submit(make_request(5, 9, params=params, output=Words(), on_event=events.append))
    steps(loop)
    assert "".join(event.text for event in events) == ("w1 w2 ." if include else "w1 .")


def test_a_stop_string_in_the_last_token_wins_over_the_limit(loop_class: Callable[..., Loop]) -> None:
    loop, events = make_loop(loop_class=loop_class), Events()
    loop.submit(make_request(5, 3, output=Words(stop_at=3), on_event=events.append))
    steps(loop)
    assert collect(events)[1].finish_reason is FinishReason.STOP


def test_samples_share_the_prompt(loop_class: Callable[..., Loop]) -> None:
    loop = make_loop(loop_class=loop_class, enable_prefix_caching=False)
    first = make_request(10, 6, seed=3)
    samples = [first, *[make_request(10, 6, seed=3, parent=first, sample_index=i) for i in (1, 2)]]
    loop.submit(*samples)
    steps(loop)
    assert [sample.output_ids for sample in samples] == [alone(sample) for sample in samples]
    assert len({tuple(sample.output_ids) for sample in samples}) == 3
    assert [sample.num_cached_tokens for sample in samples] == [0, 9, 9]


# -- refusals -------------------------------------------------------------------------------------------------------


def test_refused_requests_get_no_event_and_are_counted(loop_class: Callable[..., Loop]) -> None:
    loop, events = make_loop(loop_class=loop_class, max_num_seqs=1, max_queue_size=0), Events()
    with pytest.raises(InvalidRequest):
        loop.submit(make_request([], on_event=events.append))
    loop.submit(make_request(3, 2))
    with pytest.raises(QueueFull):
        loop.submit(make_request(3, on_event=events.append))
    loop.admission.close_door()
    with pytest.raises(Draining):
        loop.submit(make_request(3, on_event=events.append))
    steps(loop)
    assert events == []
    refused = {label: n for (name, label), n in loop.metrics.labelled.items() if "refused" in name}
    assert refused == {"InvalidRequest": 1, "QueueFull": 1, "Draining": 1}


def test_case_c23_equal_caller_ids_are_no_concern(loop_class: Callable[..., Loop]) -> None:
    loop = make_loop(loop_class=loop_class)
    requests = [make_request([i, 2, 3], 9, caller_id="id") for i in range(3)]
    loop.submit(*requests)
    steps(loop)
    assert [request.output_ids for request in requests] == [alone(request) for request in requests]


# -- cancellation and deadlines -------------------------------------------------------------------------------------


def test_case_c25_cancelling_a_waiting_request(loop_class: Callable[..., Loop]) -> None:
    loop = make_loop(loop_class=loop_class, max_num_seqs=1)
    events, cancelled = Events(), threading.Event()
    running = make_request([1], 20)
    waiting = make_request([2], 20, is_cancelled=cancelled.is_set, on_event=events.append)
    behind = make_request([3], 5)
    loop.submit(running)
    loop.submit(waiting)
    loop.submit(behind)
    loop.step()
    loop.step()
    cancelled.set()
    loop.step()
    loop.metrics.set_gauges(loop.scheduler)
    assert loop.metrics.gauges["trtdecode_requests_waiting"] == 1
    steps(loop)
    token_ids, final = collect(events)
    assert (token_ids, final.finish_reason) == ([], FinishReason.CANCELLED)
    assert isinstance(final.error, RequestCancelled)
    assert waiting.start_time is None
    assert [running.output_ids, behind.output_ids] == [alone(running), alone(behind)]
    assert_nothing_left(loop)


def test_cancelling_a_running_request_frees_its_blocks_within_one_step(loop_class: Callable[..., Loop]) -> None:
    loop = make_loop(loop_class=loop_class, enable_prefix_caching=False)
    events, cancelled = Events(), threading.Event()
    loop.submit(make_request(30, 20, is_cancelled=cancelled.is_set, on_event=events.append))
    for _ in range(4):
        loop.step()
    assert loop.kv.pool.num_available < loop.kv.pool.num_usable
    cancelled.set()
    loop.step()
    assert loop.kv.pool.num_available == loop.kv.pool.num_usable
    steps(loop)
    assert collect(events)[1].finish_reason is FinishReason.CANCELLED


def test_deadlines_waiting_and_running(loop_class: Callable[..., Loop]) -> None:
    clock = Clock()
    loop = make_loop(loop_class=loop_class, max_num_seqs=1, clock=clock)
    events: list[Events] = [[], []]
    running = make_request([1], 200, deadline=2.0, timeout_ms=2000, on_event=events[0].append)
    waiting = make_request([2], 5, deadline=1.0, timeout_ms=1000, on_event=events[1].append)
    behind = make_request([3], 5)
    loop.submit(running, waiting, behind)
    for _ in range(10):
        loop.step()
        clock.now += 0.25
    steps(loop)
    finals = [collect(got)[1] for got in events]
    assert [final.finish_reason for final in finals] == [FinishReason.ERROR] * 2
    assert all(isinstance(final.error, DeadlineExceeded) for final in finals)
    assert "2000 ms exceeded while running" in str(finals[0].error)
    assert "1000 ms exceeded while waiting" in str(finals[1].error)
    assert running.output_ids == alone(running)[: running.num_output_tokens]
    assert behind.output_ids == alone(behind)
    assert_nothing_left(loop)


def test_a_failing_cancellation_poll_ends_its_request_only(loop_class: Callable[..., Loop], silent: None) -> None:
    def poll() -> bool:
        raise OSError("connection lost")

    loop, events = make_loop(loop_class=loop_class), Events()
    other = make_request([1], 4)
    loop.submit(make_request(3, is_cancelled=poll, on_event=events.append), other)
    steps(loop)
    assert collect(events)[1].finish_reason is FinishReason.CANCELLED
    assert other.output_ids == alone(other)


# -- prompt logprobs ------------------------------------------------------------------------------------------------


class LogitsOfPosition(FakeExecutor):
    """Gives every row logits that name its position, besides the hashes."""

    def execute(self, batch: Batch) -> BatchResult:
        result = super().execute(batch)
        logits = np.repeat(batch.positions[batch.logit_indices, None], 4, axis=1).astype(np.float32)
        return BatchResult(logits, result.argmax)


class LogprobSampler(FakeSampler):
    def needs_logits(self, request: Request) -> bool:
        return True

    def prompt_logprobs(
        self, logits: npt.NDArray[np.float32], token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprob]:
        return [TokenLogprob(t, float(row[0]), num_top) for t, row in zip(token_ids, logits, strict=True)]


@pytest.mark.parametrize("num_prompt", [1, 4, 5, 15, 16, 17, 33])
def test_case_c21_prompt_logprobs_come_whole_whatever_is_cached(
    loop_class: Callable[..., Loop], num_prompt: int
) -> None:
    loop = make_loop(
        loop_class=loop_class,
        executor=LogitsOfPosition(65, 4),
        sampler=LogprobSampler(VOCAB_SIZE),
        max_num_batched_tokens=12,
        max_num_seqs=4,
    )
    for _ in range(3):
        events = Events()
        request = make_request(num_prompt, 2, params={"prompt_logprobs": 1}, on_event=events.append)
        plain = make_request(num_prompt + 2, 3)
        loop.submit(request, plain)
        steps(loop)
        logprobs = events[0].prompt_logprobs
        assert logprobs is not None and len(logprobs) == num_prompt and logprobs[0] is None
        assert [(entry.token_id, entry.logprob) for entry in logprobs if entry] == [
            (request.prompt_ids[position + 1], float(position)) for position in range(num_prompt - 1)
        ]
        assert events[1].prompt_logprobs is None
        assert (request.num_cached_tokens, request.output_ids) == (0, alone(request))
        assert plain.output_ids == alone(plain)
