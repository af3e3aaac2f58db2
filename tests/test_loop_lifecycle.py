"""Drain, stop, the watchdog, steps that never end, and what `inspect` answers meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from loop_fixtures import Clock, alone, assert_nothing_left
from simulation.builders import Events, collect, make_loop, make_request, make_spec
from simulation.fake_executor import FakeExecutor
from simulation.fake_sampler import FakeSampler
from simulation.world import VOCAB_SIZE
from trtdecode.config import ServingConfig
from trtdecode.errors import (
    DeadlineExceeded,
    Draining,
)
from trtdecode.executor.base import Batch, BatchResult
from trtdecode.loop import Loop
from trtdecode.overlap import OverlappedLoop
from trtdecode.overlap import make_loop as make_configured_loop
from trtdecode.protocols import SampleResult
from trtdecode.request import FinishReason, Request, RequestState, TokenEvent


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
