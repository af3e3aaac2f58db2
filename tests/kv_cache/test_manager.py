"""Prefix hits, allocation, forks, windows: exact tables, and random operations under check_integrity."""

from __future__ import annotations

import random

import numpy as np
import pytest
from simulation.builders import make_kv, make_request
from trtdecode.errors import InvalidRequest
from trtdecode.kv_cache.manager import KVCacheManager
from trtdecode.kv_cache.sequence_blocks import NO_PREFIX, Prefix
from trtdecode.request import Request


def table(kv: KVCacheManager, request: Request) -> list[int]:
    assert request.blocks is not None
    return kv.block_tables[request.blocks.row, : request.blocks.num_blocks].tolist()


def run(kv: KVCacheManager, request: Request, num_tokens: int | None = None) -> Prefix:
    """Starts a request on whatever the cache holds and computes its first `num_tokens` (all)."""
    prefix = kv.find_prefix(request)
    num_new = (num_tokens or request.num_tokens) - prefix.num_tokens
    assert kv.start(request, prefix, num_new) is not None
    request.start(prefix.num_tokens, now=0.0)
    compute(kv, request, num_new)
    return prefix


def compute(kv: KVCacheManager, request: Request, num_new: int) -> None:
    """A step of `num_new` tokens that succeeds; blocks are there."""
    past = request.num_scheduled_tokens
    assert request.blocks is not None
    kv.assert_writable(*(np.array([value], np.int32) for value in (request.blocks.row, past, past + num_new)))
    if request.schedule(num_new):
        request.append(900, now=0.0)
    request.complete(past + num_new)
    kv.publish(request)


# -- prefix hits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tokens", "hit"), [(1, 0), (3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12), (14, 12), (40, 12)]
)
def test_a_hit_never_covers_the_last_token(num_tokens: int, hit: int) -> None:
    """floor((n - 1) / block) * block of what is cached: three full blocks of a prompt of 14."""
    kv = make_kv()
    run(kv, make_request(14))
    prefix = kv.find_prefix(make_request(num_tokens))
    assert prefix == Prefix((1, 2, 3)[: hit // 4], hit)


def test_a_hit_shares_blocks_and_recomputes_the_rest() -> None:
    kv = make_kv()
    first, second = make_request(14), make_request(14)
    run(kv, first)
    run(kv, second)
    assert table(kv, first) == [1, 2, 3, 4]
    assert table(kv, second) == [1, 2, 3, 5]
    assert [kv.pool.ref_count(block) for block in (1, 3, 4, 5)] == [2, 2, 1, 1]
    assert (second.num_cached_tokens, kv.stats.num_prefix_queries, kv.stats.num_prefix_hits) == (12, 28, 12)
    kv.check_integrity([first, second])


def test_a_hit_survives_the_end_of_the_request_that_wrote_it() -> None:
    kv = make_kv()
    first = make_request(14)
    run(kv, first)
    kv.free(first)
    assert kv.pool.num_available == 16
    assert kv.find_prefix(make_request(14)) == Prefix((1, 2, 3), 12)


def test_the_tail_of_a_freed_sequence_is_evicted_before_its_head() -> None:
    kv = make_kv(num_blocks=5)
    run(kv, first := make_request(16))
    kv.free(first)
    run(kv, make_request([1] * 5))  # two of its four blocks
    assert kv.find_prefix(make_request(16)) == Prefix((1, 2), 8)


def test_output_tokens_are_part_of_the_chain() -> None:
    """A conversation's next turn finds the blocks that hold the last answer."""
    kv = make_kv()
    first = make_request(7)
    run(kv, first)
    kv.extend(first, 1)
    compute(kv, first, 1)
    kv.free(first)
    follow_up = make_request([*first.prompt_ids, 900, 1, 2])
    assert kv.find_prefix(follow_up) == Prefix((1, 2), 8)


@pytest.mark.parametrize("change", [0, 4, 7])
def test_one_other_token_ends_the_hit_before_its_block(change: int) -> None:
    kv = make_kv()
    run(kv, make_request(14))
    prompt = make_request(14).prompt_ids
    prompt[change] += 1
    assert kv.find_prefix(make_request(prompt)).num_tokens == change // 4 * 4


def test_extra_keys_keep_prefixes_apart() -> None:
    kv = make_kv()
    run(kv, make_request(14, extra_keys=("adapter", 1)))
    assert kv.find_prefix(make_request(14)) == NO_PREFIX
    assert kv.find_prefix(make_request(14, extra_keys=("adapter", 2))) == NO_PREFIX
    assert kv.find_prefix(make_request(14, extra_keys=("adapter", 1))).num_tokens == 12


def test_tokens_in_flight_are_not_found() -> None:
    kv = make_kv()
    request = make_request(14)
    assert kv.start(request, NO_PREFIX, 14) == [1, 2, 3, 4]
    request.start(0, now=0.0)
    request.schedule(14)
    kv.publish(request)  # nothing is computed yet
    assert kv.find_prefix(make_request(14)) == NO_PREFIX


def test_colliding_digests_are_told_apart_by_their_tokens() -> None:
    kv = make_kv(chain_hash=lambda previous, content: b"everything collides")
    run(kv, make_request([1, 2, 3, 4, 5]))
    assert kv.find_prefix(make_request([9, 2, 3, 4, 5])) == NO_PREFIX
    assert kv.find_prefix(make_request([1, 2, 3, 4, 9])).num_tokens == 4


def test_without_prefix_caching_nothing_is_found_or_counted() -> None:
    kv = make_kv(enable_prefix_caching=False)
    run(kv, make_request(14))
    assert kv.find_prefix(make_request(14)) == NO_PREFIX
    assert (kv.stats.num_prefix_queries, kv.pool.num_cached) == (0, 0)


def test_prompt_logprobs_need_the_whole_prompt_until_they_are_complete() -> None:
    kv = make_kv()
    run(kv, make_request(14))
    request = make_request(14, params={"prompt_logprobs": 1})
    assert kv.find_prefix(request) == NO_PREFIX
    request.prompt_logprobs = [None] * 14
    assert kv.find_prefix(request).num_tokens == 12  # preempted after that
    other_sample = make_request(14, params={"prompt_logprobs": 1}, sample_index=1)
    assert kv.find_prefix(other_sample).num_tokens == 12


# -- allocation -----------------------------------------------------------------------------------------------------


def test_blocks_are_allocated_exactly_as_far_as_the_step_writes() -> None:
    kv = make_kv()
    request = make_request(30)
    assert kv.start(request, NO_PREFIX, 4) == [1]
    request.start(0, now=0.0)
    request.schedule(4)
    assert kv.extend(request, 1) == [2]
    assert kv.extend(request, 4) == []
    assert kv.extend(request, 9) == [3, 4]
    assert table(kv, request) == [1, 2, 3, 4]


def test_not_now_is_none_and_changes_nothing() -> None:
    kv = make_kv(num_blocks=5)
    first = make_request(9)
    run(kv, first)
    second = make_request([1] * 9)
    assert kv.start(second, NO_PREFIX, 9) is None
    assert second.blocks is None
    assert kv.extend(first, 8) is None
    assert table(kv, first) == [1, 2, 3]
    assert kv.extend(first, 7) == [4]


def test_a_hit_on_unreferenced_blocks_uses_up_what_is_available() -> None:
    """Four blocks, all cached: a hit on three leaves one, so a request that needs two more must wait."""
    kv = make_kv(num_blocks=5)
    run(kv, gone := make_request(16))
    kv.free(gone)
    assert kv.pool.num_cached == 4
    request = make_request([*gone.prompt_ids[:12], 1, 2, 3, 4, 5, 6])
    prefix = kv.find_prefix(request)
    assert prefix.num_tokens == 12
    assert kv.start(request, prefix, 6) is None
    assert kv.pool.num_cached == 4
    assert kv.start(request, prefix, 4) == [4]


def test_headroom_must_remain() -> None:
    kv = make_kv(num_blocks=5)
    assert kv.start(make_request(8), NO_PREFIX, 8, headroom=3) is None
    assert kv.start(make_request(8), NO_PREFIX, 8, headroom=2) == [1, 2]


def test_rows_run_out_before_blocks() -> None:
    kv = make_kv(max_num_seqs=1)
    first, second = make_request(4), make_request([1, 2])
    assert kv.start(first, NO_PREFIX, 4) is not None
    assert kv.start(second, NO_PREFIX, 2) is None
    kv.free(first)
    assert kv.start(second, NO_PREFIX, 2) is not None


def test_what_never_fits_is_refused_with_both_numbers() -> None:
    kv = make_kv()
    kv.check_fits(64, "max_tokens")
    with pytest.raises(InvalidRequest, match=r"max_tokens: got 65; needs 17 KV blocks and the pool has 16 \(64 tokens"):
        kv.check_fits(65, "max_tokens")


# -- forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_prompt", "shared", "copied"),
    [
        (1, [], None),
        (2, [], 1),
        (4, [], 1),
        (5, [1], None),
        (6, [1], 2),
        (8, [1], 2),
        (9, [1, 2], None),
        (14, [1, 2, 3], 4),
    ],
)
def test_a_fork_shares_full_blocks_and_copies_the_partial_one(
    num_prompt: int, shared: list[int], copied: int | None
) -> None:
    """The child computes the last prompt token only, in a block of its own."""
    kv = make_kv(enable_prefix_caching=False)
    parent = make_request(num_prompt)
    run(kv, parent)
    child = make_request(num_prompt, parent=parent, sample_index=1)
    prefix = kv.find_prefix(child)
    assert prefix == Prefix(tuple(shared), num_prompt - 1, copied)
    new = kv.start(child, prefix, 1)
    assert new is not None and len(new) == 1
    child.start(prefix.num_tokens, now=0.0)
    compute(kv, child, 1)
    assert table(kv, child) == [*shared, *new]
    kv.check_integrity([parent, child])


def test_a_parent_that_lost_its_blocks_cannot_be_forked() -> None:
    kv = make_kv(enable_prefix_caching=False)
    parent = make_request(14)
    run(kv, parent)
    kv.free(parent)
    parent.preempt()
    child = make_request(14, parent=parent, sample_index=1)
    assert kv.find_prefix(child) == NO_PREFIX
    kv.start(parent, NO_PREFIX, 9)  # and not before it has computed the prompt again
    parent.start(0, now=0.0)
    parent.schedule(9)
    parent.complete(9)
    assert kv.find_prefix(child) == NO_PREFIX


# -- sliding window -------------------------------------------------------------------------------------------------


def test_blocks_outside_the_window_are_freed_and_point_to_the_null_block() -> None:
    """Window 6, blocks of 4: at position p the query sees p-5..p, so block j is done when 4 * (j + 1) <= p - 5."""
    kv = make_kv(window=6, enable_prefix_caching=False)
    request = make_request(8, max_tokens=40)
    run(kv, request)
    for _ in range(9):
        assert kv.extend(request, 1) is not None
        compute(kv, request, 1)
        kv.check_integrity([request])
    assert request.num_computed_tokens == 17
    # When position 12 needs a block, block 1 is free again and serves at once; at 16, so does block 2.
    assert table(kv, request) == [0, 0, 3, 1, 2]
    waste = kv.waste([request])
    assert (waste.num_slots, waste.num_unused) == (12, 3)


def test_a_hit_in_a_windowed_model_holds_only_what_the_window_sees() -> None:
    kv = make_kv(window=6)
    run(kv, make_request(18))
    assert kv.find_prefix(make_request(18)) == Prefix((0, 0, 3, 4), 16)


def test_a_sequence_longer_than_the_pool_fits_if_its_window_does() -> None:
    kv = make_kv(num_blocks=7, window=6, max_step_tokens=8)
    assert kv.num_resident_blocks(1000) == 5  # 13 tokens span at most 5 blocks of 4
    kv.check_fits(1000, "prompt")
    request = make_request(200, max_tokens=40)
    assert kv.start(request, NO_PREFIX, 8) is not None
    request.start(0, now=0.0)
    compute(kv, request, 8)
    while request.num_unscheduled_tokens > 8:
        assert kv.extend(request, 8) is not None
        compute(kv, request, 8)
        kv.check_integrity([request])
    assert request.num_computed_tokens == 192


def test_a_parent_whose_window_has_moved_on_cannot_be_forked() -> None:
    kv = make_kv(window=6, enable_prefix_caching=False)
    parent = make_request(8, max_tokens=40)
    run(kv, parent)
    child = make_request(8, parent=parent, sample_index=1)
    assert kv.find_prefix(child) == Prefix((1,), 7, 2)
    for _ in range(9):
        kv.extend(parent, 1)
        compute(kv, parent, 1)
    assert kv.find_prefix(child) == NO_PREFIX


# -- random operations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_random_operations(seed: int) -> None:
    rng = random.Random(seed)
    window = rng.choice((0, 0, 7))
    kv = make_kv(
        rng.randint(4, 40),
        rng.choice((1, 2, 4, 8)),
        max_num_seqs=rng.randint(1, 6),
        max_step_tokens=16,
        window=window,
        enable_prefix_caching=rng.random() < 0.8,
    )
    running: list[Request] = []
    for _ in range(400):
        action = rng.randrange(5)
        if action < 2:
            parent = rng.choice(running) if running and rng.random() < 0.5 else None
            prompt = parent.prompt_ids if parent else [rng.randrange(3) for _ in range(rng.randint(1, 30))]
            request = make_request(prompt, 30, parent=parent)
            prefix = kv.find_prefix(request)
            assert prefix.num_tokens < request.num_tokens
            num_new = rng.randint(1, min(16, request.num_tokens - prefix.num_tokens))
            if kv.start(request, prefix, num_new) is not None:
                request.start(prefix.num_tokens, now=0.0)
                compute(kv, request, num_new)
                running.append(request)
        elif action == 2 and running:
            request = running.pop(rng.randrange(len(running)))
            kv.free(request)
        elif running:
            request = rng.choice(running)
            num_new = min(request.num_unscheduled_tokens, rng.randint(1, 16))
            if num_new and kv.extend(request, num_new) is not None:
                compute(kv, request, num_new)
        kv.check_integrity(running)
    for request in running:
        kv.free(request)
    kv.check_integrity([])
    assert kv.pool.num_available == kv.pool.num_usable
