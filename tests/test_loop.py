"""The loop as its callers see it: events, refusals, deadlines, cancellation, faults, drain. Both loops alike."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from simulation.builders import Events, collect, make_loop, make_request, make_spec
from simulation.deferred_worker import DeferredWorker
from simulation.fake_executor import FakeExecutor
from simulation.fake_sampler import FakeSampler, solo
from simulation.world import EOS, VOCAB_SIZE
from trtdecode.config import ServingConfig
from trtdecode.errors import (
    DeadlineExceeded,
    Draining,
    ExecutorFailed,
    InvalidRequest,
    QueueFull,
    RequestCancelled,
)
from trtdecode.executor.base import Batch, BatchResult
from trtdecode.loop import Loop
from trtdecode.overlap import OverlappedLoop
from trtdecode.overlap import make_loop as make_configured_loop
from trtdecode.protocols import SampleResult
from trtdecode.replay import replay_file
from trtdecode.request import FinishReason, Request, RequestState, TokenEvent, TokenLogprob


def deferred(*args: Any, **kwargs: Any) -> Loop:
    return OverlappedLoop(*args, worker=DeferredWorker(), **kwargs)


@pytest.fixture(params=[Loop, deferred], ids=["plain", "overlapped"])
def loop_class(request: pytest.FixtureRequest) -> Callable[..., Loop]:
    made: Callable[..., Loop] = request.param
    return made


@pytest.fixture
def silent() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def steps(loop: Loop, count: int = 200) -> None:
    """Steps until nothing is left, with every check."""
    for _ in range(count):
        if not loop.step() and not loop.admission.num_inside:
            return
        loop.check_integrity()
    raise AssertionError(f"{loop.admission.num_inside} requests are still inside")


def alone(request: Request) -> list[int]:
    return solo(request, VOCAB_SIZE, EOS, 0)[0]


def assert_nothing_left(loop: Loop) -> None:
    loop.check_integrity()
    assert loop.scheduler.num_requests == loop.admission.num_inside == 0
    assert loop.kv.pool.num_available == loop.kv.pool.num_usable


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


class Words:
    """A text output of one word a token, which stops at `stop_at` and holds back nothing but a full stop."""

    def __init__(self, stop_at: int | None = None, fail_at: int | None = None) -> None:
        self.num_tokens = 0
        self.stop_at, self.fail_at = stop_at, fail_at

    def push(self, token_ids: Sequence[int]) -> tuple[str, bool]:
        self.num_tokens += len(token_ids)
        if self.num_tokens == self.fail_at:
            raise ValueError("bad bytes")
        return f"w{self.num_tokens} ", self.num_tokens == self.stop_at

    def flush(self) -> str:
        return "."


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


# -- faults ---------------------------------------------------------------------------------------------------------


def test_an_executor_fault_ends_the_requests_of_its_batch(loop_class: Callable[..., Loop], silent: None) -> None:
    executor = FakeExecutor(65, 4)
    loop = make_loop(loop_class=loop_class, executor=executor, max_num_seqs=2)
    events: list[Events] = [[], [], []]
    requests = [make_request([i] * 9, 6, on_event=events[i].append) for i in range(3)]
    loop.submit(*requests)
    loop.step()
    loop.step()
    executor.fail_next = True
    steps(loop)
    for got in events[:2]:
        final = collect(got)[1]
        assert isinstance(final.error, ExecutorFailed)
        assert "executor fake raised RuntimeError('injected fault')" in str(final.error)
    assert collect(events[2]) == (alone(requests[2]), events[2][-1])
    assert loop.metrics.counters["trtdecode_step_failures_total"] == 1
    assert_nothing_left(loop)


def test_a_fault_also_ends_prompts_that_were_not_complete(loop_class: Callable[..., Loop], silent: None) -> None:
    """A chunk that failed has left nothing usable behind."""
    executor = FakeExecutor(65, 4)
    loop = make_loop(loop_class=loop_class, executor=executor, max_num_batched_tokens=8, max_num_seqs=4)
    request = make_request(30, 5)
    executor.fail_next = True
    loop.submit(request)
    steps(loop)
    assert (request.finish_reason, request.output_ids) == (FinishReason.ERROR, [])
    assert_nothing_left(loop)


def test_blocks_of_a_failed_step_are_not_found_again(loop_class: Callable[..., Loop], silent: None) -> None:
    """The failing step has written garbage for all we know: a hit on it would poison the next request."""
    executor = FakeExecutor(65, 4)
    loop = make_loop(loop_class=loop_class, executor=executor)
    executor.fail_next = True
    loop.submit(make_request(14))
    steps(loop)
    again = make_request(14)
    loop.submit(again)
    steps(loop)
    assert (again.num_cached_tokens, again.output_ids) == (0, alone(again))


@pytest.mark.parametrize("steps_before", [1, 2, 3])
def test_a_lost_cache_ends_what_runs_and_nothing_of_it_is_found_again(
    loop_class: Callable[..., Loop], silent: None, tmp_path: Path, steps_before: int
) -> None:
    """Two run, one waits: it is answered. A cached prompt of before is computed anew. The recorder tells the same."""
    executor = FakeExecutor(65, 4)
    loop = make_loop(loop_class=loop_class, executor=executor, max_num_seqs=2, recorder_steps=1000)
    cached = make_request(14)
    loop.submit(cached)
    steps(loop)
    events: list[Events] = [[], [], []]
    requests = [make_request([i] * 9, 12, on_event=events[i].append) for i in range(3)]
    loop.submit(*requests)
    for _ in range(steps_before):
        loop.step()
    executor.lose_next = True
    steps(loop)
    for got in events[:2]:
        final = collect(got)[1]
        assert isinstance(final.error, ExecutorFailed)
        assert str(final.error) == "executor fake: injected loss"
    assert collect(events[2])[0] == alone(requests[2])
    again = make_request(14)
    loop.submit(again)
    steps(loop)
    assert (again.num_cached_tokens, again.output_ids) == (0, alone(again))
    assert_nothing_left(loop)
    path = loop.recorder.save(tmp_path / "dump.json")
    assert path is not None and replay_file(path).is_same


def test_samples_of_a_failed_prompt_compute_it_themselves(loop_class: Callable[..., Loop], silent: None) -> None:
    executor = FakeExecutor(65, 4)
    loop = make_loop(loop_class=loop_class, executor=executor)
    first = make_request(10, 6)
    second = make_request(10, 6, parent=first, sample_index=1)
    executor.fail_next = True
    loop.submit(first, second)
    steps(loop)
    assert (first.output_ids, second.output_ids) == ([], alone(second))


class Poisoned(FakeSampler):
    """Raises for one seed, and reports a row error for another."""

    def sample(self, result: BatchResult, requests: Sequence[Request]) -> SampleResult:
        if any(request.seed == 13 for request in requests):
            raise ZeroDivisionError("poisoned")
        samples = super().sample(result, requests)
        for row, request in enumerate(requests):
            if request.seed == 14 and request.num_output_tokens == 2:
                samples.errors[row] = InvalidRequest("guided_json", 2, "no token may follow")
        return samples


def test_a_sampler_fault_ends_its_batch_and_a_row_fault_its_row(loop_class: Callable[..., Loop], silent: None) -> None:
    loop = make_loop(loop_class=loop_class, sampler=Poisoned(VOCAB_SIZE))
    events: list[Events] = [[], []]
    loop.submit(make_request(3, seed=13, on_event=events[0].append))
    steps(loop)
    assert "sampler raised ZeroDivisionError('poisoned')" in str(collect(events[0])[1].error)
    neighbour = make_request(4, 8)
    loop.submit(make_request(3, 8, seed=14, on_event=events[1].append), neighbour)
    steps(loop)
    token_ids, final = collect(events[1])
    assert (len(token_ids), final.finish_reason) == (2, FinishReason.ERROR)
    assert isinstance(final.error, InvalidRequest)
    assert neighbour.output_ids == alone(neighbour)
    assert_nothing_left(loop)


def test_a_fault_in_one_text_ends_that_request(loop_class: Callable[..., Loop], silent: None) -> None:
    loop, events = make_loop(loop_class=loop_class), Events()
    neighbour = make_request([1], 8)
    loop.submit(make_request(3, 8, output=Words(fail_at=2), on_event=events.append), neighbour)
    steps(loop)
    final = collect(events)[1]
    assert "text output failed: ValueError('bad bytes')" in str(final.error)
    assert neighbour.output_ids == alone(neighbour)
    assert_nothing_left(loop)


def test_a_receiver_that_raises_ends_its_request(loop_class: Callable[..., Loop], silent: None) -> None:
    events = Events()

    def receive(event: TokenEvent) -> None:
        events.append(event)
        raise OSError("pipe closed")

    loop = make_loop(loop_class=loop_class)
    loop.submit(make_request(3, 8, on_event=receive))
    steps(loop)
    assert [event.finish_reason for event in events] == [None, FinishReason.CANCELLED]
    assert_nothing_left(loop)


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


# -- lifecycle ------------------------------------------------------------------------------------------------------


def test_drain_lets_everything_finish(loop_class: Callable[..., Loop]) -> None:
    loop = make_loop(loop_class=loop_class, max_num_seqs=1)
    requests = [make_request(3, 5) for _ in range(3)]
    loop.submit(*requests)
    assert loop.drain() is True
    assert [request.finish_reason for request in requests] == [FinishReason.LENGTH] * 3
    with pytest.raises(Draining):
        loop.submit(make_request(3))


def test_drain_cancel_ends_waiting_and_running_requests(loop_class: Callable[..., Loop]) -> None:
    loop = make_loop(loop_class=loop_class, max_num_seqs=1)
    events: list[Events] = [[], []]
    loop.submit(*[make_request(3, 50, on_event=got.append) for got in events])
    loop.step()
    loop.step()
    assert loop.drain(cancel=True) is False
    for got in events:
        final = collect(got)[1]
        assert (final.finish_reason, "draining" in str(final.error)) == (FinishReason.CANCELLED, True)
    assert_nothing_left(loop)


def test_drain_cancels_what_is_left_after_its_timeout(loop_class: Callable[..., Loop]) -> None:
    clock = Clock()
    loop = make_loop(loop_class=loop_class, clock=clock)
    short, long = (
        make_request([1], 3),
        make_request([2], 200, on_event=lambda event: setattr(clock, "now", clock.now + 1)),
    )
    loop.submit(short, long)
    assert loop.drain(timeout=20.0) is False
    assert (short.finish_reason, long.finish_reason) == (FinishReason.LENGTH, FinishReason.CANCELLED)
    assert 15 <= long.num_output_tokens <= 25


@pytest.mark.parametrize("overlap", [False, True])
def test_on_a_thread_of_its_own(overlap: bool) -> None:
    """Real clock, real threads: submissions from four threads while it runs, then drain and stop."""
    others = set(threading.enumerate())
    spec = make_spec()
    loop = make_configured_loop(
        FakeExecutor(200, 4), FakeSampler(VOCAB_SIZE), ServingConfig(max_num_seqs=8, overlap=overlap), spec
    )
    assert isinstance(loop, OverlappedLoop) is overlap
    loop.start()
    requests = [make_request([i, i + 1], 10, seed=i, arrival_time=time.monotonic()) for i in range(40)]

    def client(index: int) -> None:
        for request in requests[index::4]:
            loop.submit(request)

    threads = [threading.Thread(target=client, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loop.drain(timeout=60) is True
    loop.stop()
    loop.stop()  # idempotent
    assert [request.output_ids for request in requests] == [alone(request) for request in requests]
    assert_nothing_left(loop)
    assert set(threading.enumerate()) <= others


@pytest.mark.parametrize("where", ["schedule", "update", "finish"])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_loop_survives_a_fault_of_its_own(
    overlap: bool, where: str, silent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it strikes, every request ends, and the next one is served."""
    loop = make_configured_loop(
        FakeExecutor(65, 4), FakeSampler(VOCAB_SIZE), ServingConfig(overlap=overlap), make_spec()
    )
    original, calls = getattr(loop.scheduler, where), []

    def broken(argument: Any) -> Any:
        calls.append(argument)
        if len(calls) == 2 or where == "finish":
            raise KeyError("a bug")
        return original(argument)

    monkeypatch.setattr(loop.scheduler, where, broken)
    ended = threading.Event()
    victims = [make_request(3, n, on_event=lambda event: ended.set() if event.is_final else None) for n in (50, 3)]
    loop.submit(*victims)
    loop.start()
    assert ended.wait(30)
    assert loop.admission.wait_empty(30)
    assert [victim.finish_reason for victim in victims] == [FinishReason.ERROR] * 2
    survivor = make_request(3, 5)
    loop.submit(survivor)
    assert loop.drain(timeout=30) is True
    loop.stop()
    assert survivor.output_ids == alone(survivor)
    assert_nothing_left(loop)


class Stuck(FakeExecutor):
    """Waits for `released` in its second step."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.released = threading.Event()

    def execute(self, batch: Batch) -> BatchResult:
        if self.num_steps == 1:
            assert self.released.wait(30)
        return super().execute(batch)


@pytest.mark.parametrize("overlap", [False, True])
def test_the_watchdog_dumps_a_stuck_step_once(overlap: bool, caplog: pytest.LogCaptureFixture) -> None:
    executor = Stuck(65, 4)
    config = ServingConfig(overlap=overlap, watchdog_ms=40.0)
    loop = make_configured_loop(executor, FakeSampler(VOCAB_SIZE), config, make_spec())
    loop.start()
    request = make_request(3, 5)
    loop.submit(request)
    deadline = time.monotonic() + 30
    while not loop.metrics.counters["trtdecode_watchdog_dumps_total"] and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    executor.released.set()
    assert loop.drain(timeout=30) is True
    loop.stop()
    assert loop.metrics.counters["trtdecode_watchdog_dumps_total"] == 1
    assert "flight recorder: /" in caplog.text
    assert request.output_ids == alone(request)


def test_a_step_that_hangs_does_not_hold_its_requests() -> None:
    """With a step in flight, cancellations, deadlines and a drain still end requests."""
    executor = Stuck(65, 4)
    loop = make_configured_loop(executor, FakeSampler(VOCAB_SIZE), ServingConfig(overlap=True), make_spec())
    loop.start()
    cancelled = threading.Event()
    finals: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()

    def on_event(event: TokenEvent) -> None:
        if event.is_final:
            finals.put(event)

    now = time.monotonic()
    loop.submit(make_request([1], 50, is_cancelled=cancelled.is_set, on_event=on_event))
    loop.submit(make_request([2], 50, deadline=now + 0.2, timeout_ms=200, on_event=on_event))
    loop.submit(make_request([3], 50, on_event=on_event))
    assert isinstance(finals.get(timeout=30).error, DeadlineExceeded)
    cancelled.set()
    assert finals.get(timeout=30).finish_reason is FinishReason.CANCELLED
    assert loop.drain(timeout=0.1) is False
    assert finals.get(timeout=30).finish_reason is FinishReason.CANCELLED
    executor.released.set()
    loop.stop()
    assert_nothing_left(loop)


class StuckSampler(FakeSampler):
    """Like Stuck, outside the executor."""

    def __init__(self, released: threading.Event) -> None:
        super().__init__(VOCAB_SIZE)
        self.released, self.num_calls = released, 0

    def sample(self, result: BatchResult, requests: Sequence[Request]) -> SampleResult:
        self.num_calls += 1
        if self.num_calls == 2:
            assert self.released.wait(60)
        return super().sample(result, requests)


@pytest.mark.parametrize("place", ["executor", "executor, overlapped", "sampler", "sampler, overlapped"])
def test_a_drain_is_bounded_although_a_step_never_ends(
    place: str, monkeypatch: pytest.MonkeyPatch, silent: None
) -> None:
    """Running, waiting and not even taken in: each gets one final event. When the step comes back, all goes on."""
    monkeypatch.setattr("trtdecode.loop._CANCEL_S", 0.3)
    executor = Stuck(65, 4)
    sampler = FakeSampler(VOCAB_SIZE)
    if place.startswith("sampler"):
        sampler, executor = StuckSampler(executor.released), FakeExecutor(65, 4)
        released = sampler.released
    else:
        released = executor.released
    config = ServingConfig(overlap="overlapped" in place, max_num_seqs=1)
    loop = make_configured_loop(executor, sampler, config, make_spec())
    loop.start()
    events: list[Events] = [[] for _ in range(3)]
    requests = [make_request([index], 50, on_event=events[index].append) for index in range(3)]
    loop.submit(*requests[:2])
    deadline = time.monotonic() + 30
    while not events[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)  # the second step has begun
    loop.submit(requests[2])
    assert loop.drain(timeout=0.1) is False
    assert [collect(got)[1].finish_reason for got in events] == [FinishReason.CANCELLED] * 3
    assert loop.admission.num_inside == 0
    released.set()
    loop.resume()
    survivor = make_request([7], 5)
    loop.submit(survivor)
    assert loop.drain(timeout=30) is True
    assert survivor.output_ids == alone(survivor)
    assert [len([event for event in got if event.is_final]) for got in events] == [1, 1, 1]
    loop.stop()
    assert_nothing_left(loop)


def test_stopping_does_not_wait_for_a_step_that_never_ends(monkeypatch: pytest.MonkeyPatch, silent: None) -> None:
    monkeypatch.setattr("trtdecode.loop._CANCEL_S", 0.3)
    executor = Stuck(65, 4)
    config = ServingConfig(overlap=False)
    loop = make_configured_loop(executor, FakeSampler(VOCAB_SIZE), config, make_spec())
    loop.start()
    events: Events = []
    loop.submit(make_request([1], 50, on_event=events.append))
    deadline = time.monotonic() + 30
    while not events and time.monotonic() < deadline:
        time.sleep(0.01)
    loop.stop()
    assert collect(events)[1].finish_reason is FinishReason.CANCELLED
    executor.released.set()


def test_cancellation_is_noticed_while_the_queue_waits(loop_class: Callable[..., Loop]) -> None:
    """A request whose state the loop cannot advance is still polled."""
    loop = make_loop(loop_class=loop_class)
    cancelled = threading.Event()
    request = make_request(3, is_cancelled=cancelled.is_set)
    loop.submit(request)
    cancelled.set()
    loop.step()
    assert request.state is RequestState.FINISHED
    assert loop.kv.stats.num_prefix_queries == 0  # never started


def test_inspect_answers_between_two_steps_while_busy_and_while_idle() -> None:
    loop = make_loop()
    with pytest.raises(TimeoutError):
        loop.inspect(0.01)  # nobody steps
    loop.start()
    try:
        total = loop.kv.pool.num_usable
        assert loop.inspect(10)["blocks"] == [[0, total]]
        request = make_request(5, 200)
        loop.submit(request)
        seen = []
        while request.finish_reason is None:
            seen.append(loop.inspect(10))
        owners = {owner for view in seen for owner, count in view["blocks"] if owner > 0}
        assert owners <= {request.request_id}
        assert all(sum(count for _, count in view["blocks"]) == total for view in seen)
    finally:
        loop.stop()


def test_the_overlapped_loop_tells_its_blocks_during_a_step() -> None:
    release = threading.Event()

    class Slow(FakeExecutor):
        def execute(self, batch: Batch) -> BatchResult:
            release.wait(60)
            return super().execute(batch)

    loop = make_loop(executor=Slow(65, 4), loop_class=OverlappedLoop)
    loop.start()
    try:
        request = make_request(5, 4)
        loop.submit(request)
        deadline = time.monotonic() + 30
        while not loop.inspect(10)["num_sequences"]:
            assert time.monotonic() < deadline
        assert loop.inspect(10)["sequences"] == [[request.request_id, "", "", 5]]
        assert not release.is_set()
    finally:
        release.set()
        loop.stop()
