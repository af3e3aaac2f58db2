"""The arrays of a batch, exactly, and against a plain Python reference on random schedules."""

from __future__ import annotations

import random

import numpy as np
import pytest
from simulation.builders import make_kv, make_request, make_scheduler
from trtdecode.executor.base import Batch
from trtdecode.scheduler.batch import BatchFromSchedule, fill_pending
from trtdecode.scheduler.scheduler import Schedule, Scheduler

DTYPES = {
    "input_ids": np.int64,
    "positions": np.int64,
    "past_lens": np.int32,
    "query_begins": np.int32,
    "block_indices": np.int32,
    "block_begins": np.int32,
    "logit_indices": np.int64,
}


def make_builder(scheduler: Scheduler) -> BatchFromSchedule:
    return BatchFromSchedule(
        scheduler.kv,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
    )


def lists(batch: Batch) -> dict[str, list[int]]:
    return {name: getattr(batch, name).tolist() for name in DTYPES}


def reference(scheduler: Scheduler, plan: Schedule) -> dict[str, list[int]]:
    """What a batch holds, one sequence at a time, in plain Python."""
    out: dict[str, list[int]] = {name: [] for name in DTYPES}
    out["query_begins"], out["block_begins"] = [0], [0]
    for request, past, new in zip(plan.requests, plan.num_past_tokens, plan.num_new_tokens, strict=True):
        tokens = request.prompt_ids + request.output_ids
        out["input_ids"] += tokens[past : past + new]
        out["positions"] += range(past, past + new)
        out["past_lens"].append(past)
        out["query_begins"].append(out["query_begins"][-1] + new)
        assert request.blocks is not None
        table = scheduler.kv.block_tables[request.blocks.row].tolist()
        out["block_indices"] += table[: scheduler.kv.blocks_for(past + new)]
        out["block_begins"].append(len(out["block_indices"]))
        if past + new == len(tokens):
            out["logit_indices"].append(out["query_begins"][-1] - 1)
    return out


def test_a_mixed_batch() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    builder = make_builder(scheduler)
    decoding, prompt = make_request([11, 12, 13, 14, 15], 9), make_request([20 + i for i in range(12)])
    scheduler.add(decoding)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    builder.build(plan)
    scheduler.update(plan)
    decoding.append(16, 0.0)
    scheduler.add(prompt)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    batch = builder.build(plan)
    assert lists(batch) == {
        "input_ids": [16, 20, 21, 22, 23, 24, 25, 26],
        "positions": [5, 0, 1, 2, 3, 4, 5, 6],
        "past_lens": [5, 0],
        "query_begins": [0, 1, 8],
        "block_indices": [1, 2, 3, 4],
        "block_begins": [0, 2, 4],
        "logit_indices": [0],  # the prompt goes on: it needs no logits yet
    }
    assert (batch.num_tokens, batch.num_sequences, batch.max_context_len) == (8, 2, 7)
    assert {name: getattr(batch, name).dtype.type for name in DTYPES} == DTYPES


@pytest.mark.parametrize("seed", range(8))
def test_random_schedules_give_the_reference_batch(seed: int) -> None:
    rng = random.Random(seed)
    kv = make_kv(rng.randint(40, 80), rng.choice((1, 3, 4)), enable_prefix_caching=rng.random() < 0.5)
    scheduler = make_scheduler(kv, max_num_batched_tokens=rng.randint(8, 40))
    builder = make_builder(scheduler)
    for _ in range(100):
        if rng.random() < 0.5 and len(scheduler.waiting) < 4:
            scheduler.add(make_request([rng.randrange(4) for _ in range(rng.randint(1, 20))], rng.randint(1, 12)))
        plan = scheduler.schedule(0.0)
        if plan is None:
            continue
        batch = builder.build(plan)
        assert lists(batch) == reference(scheduler, plan)
        context_lens = [a + b for a, b in zip(plan.num_past_tokens, plan.num_new_tokens, strict=True)]
        assert batch.max_context_len == max(context_lens)
        scheduler.update(plan)
        for request in plan.sampled:
            request.append(rng.randrange(4), 0.0)
            if request.num_tokens == request.max_total_tokens:
                scheduler.finish(request)


def test_tokens_in_flight_are_filled_in_later() -> None:
    scheduler = make_scheduler()
    first, second = make_builder(scheduler), make_builder(scheduler)
    decoding, prompt = make_request([1, 2, 3]), make_request([7] * 9)
    scheduler.add(decoding)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    in_flight = first.build(plan)
    scheduler.add(prompt)
    ahead = scheduler.schedule(0.0)
    assert ahead is not None
    batch = second.build(ahead)
    assert batch.input_ids.tolist() == [0] + [7] * 9
    assert in_flight.input_ids.tolist() == [1, 2, 3]  # not touched: the executor is reading it
    decoding.append(555, 0.0)
    fill_pending(batch, ahead)
    assert batch.input_ids.tolist() == [555] + [7] * 9


def test_only_plain_greedy_batches_may_skip_their_logits() -> None:
    scheduler = make_scheduler()
    builder = make_builder(scheduler)
    plain = make_request([1], needs_logits=False)
    scheduler.add(plain)
    plan = scheduler.schedule(0.0)
    assert plan is not None and builder.build(plan).argmax_only is True
    scheduler.update(plan)
    plain.append(1, 0.0)
    scheduler.add(make_request([2], needs_logits=True))
    plan = scheduler.schedule(0.0)
    assert plan is not None and builder.build(plan).argmax_only is False


def test_prompt_logprobs_ask_for_the_rows_of_every_chunk() -> None:
    """Rows of sampled tokens come first, then the prompt's; the last prompt token's row is the sampled one."""
    scheduler = make_scheduler(max_num_batched_tokens=8)
    builder = make_builder(scheduler)
    other = make_request([1, 2], needs_logits=False)
    request = make_request([5] * 10, params={"prompt_logprobs": 0}, needs_logits=False)
    scheduler.add(other)
    scheduler.add(request)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    batch = builder.build(plan)
    assert batch.logit_indices.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert plan.prompt_ranges == [(request, 0, 6)]
    assert batch.argmax_only is False
    scheduler.update(plan)
    other.append(1, 0.0)
    request.prompt_logprobs = [None] * 7
    plan = scheduler.schedule(0.0)
    assert plan is not None
    batch = builder.build(plan)
    assert batch.query_begins.tolist() == [0, 1, 5]
    assert batch.logit_indices.tolist() == [0, 4, 1, 2, 3]
    assert plan.prompt_ranges == [(request, 6, 9)]


def test_a_block_that_is_shared_is_never_written() -> None:
    scheduler = make_scheduler()
    builder = make_builder(scheduler)
    request = make_request([1, 2, 3])
    scheduler.add(request)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    scheduler.kv.pool.retain([1])
    with pytest.raises(AssertionError, match="block 1 would be written with ref_count 2"):
        builder.build(plan)


def test_every_block_of_a_chunk_is_checked() -> None:
    scheduler = make_scheduler()
    builder = make_builder(scheduler)
    scheduler.add(make_request([1] * 14))
    plan = scheduler.schedule(0.0)
    assert plan is not None
    scheduler.kv.pool.retain([3])
    with pytest.raises(AssertionError, match="block 3 would be written"):
        builder.build(plan)
