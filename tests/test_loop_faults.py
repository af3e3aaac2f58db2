"""Faults of the executor, the sampler, a receiver and the loop itself: who ends, and what is left. Both loops alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from loop_fixtures import Words, alone, assert_nothing_left, steps
from simulation.builders import Events, collect, make_loop, make_request
from simulation.fake_executor import FakeExecutor
from simulation.fake_sampler import FakeSampler
from simulation.world import VOCAB_SIZE
from trtdecode.errors import (
    ExecutorFailed,
    InvalidRequest,
)
from trtdecode.executor.base import BatchResult
from trtdecode.loop import Loop
from trtdecode.protocols import SampleResult
from trtdecode.replay import replay_file
from trtdecode.request import FinishReason, Request, TokenEvent


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
