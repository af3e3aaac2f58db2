"""Swapping in the cache manager and the scheduler: which blocks go, what comes back, and when it is recomputed."""

from __future__ import annotations

import pytest
from simulation.builders import make_kv, make_request, make_scheduler, run_step
from trtdecode.kv_cache.block_pool import NULL_BLOCK
from trtdecode.kv_cache.host_pool import HostPool
from trtdecode.kv_cache.manager import KVCacheManager
from trtdecode.request import Request, RequestState


def running(kv: KVCacheManager, num_tokens: int, **fields: object) -> Request:
    """A request whose first `num_tokens` are computed."""
    request = make_request(num_tokens + 1, 40, **fields)  # type: ignore[arg-type]
    prefix = kv.find_prefix(request)
    assert kv.start(request, prefix, num_tokens - prefix.num_tokens) is not None
    request.start(prefix.num_tokens, 0.0)
    request.schedule(num_tokens - prefix.num_tokens)
    request.complete(num_tokens)
    return request


def test_the_host_pool_gives_each_block_once() -> None:
    pool = HostPool(3)
    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(2) is None and pool.num_used == 2
    pool.check_integrity([1, 0])
    pool.release([0, 1])
    assert pool.allocate(3) == [0, 1, 2]
    with pytest.raises(AssertionError, match="lost or held twice"):
        pool.check_integrity([0, 1])
    with pytest.raises(AssertionError):
        pool.check_integrity([0, 1, 2, 2])


def test_swapping_out_frees_the_blocks_and_names_the_copies() -> None:
    kv = make_kv(num_host_blocks=8, enable_prefix_caching=False)
    request = running(kv, 10)  # three blocks of 4
    assert kv.swap_out(request) == [(1, 0), (2, 1), (3, 2)]
    request.preempt()
    assert request.blocks is None and kv.pool.num_available == kv.pool.num_usable
    assert (kv.host.num_used, request.swapped.num_tokens) == (3, 10)
    kv.check_integrity([], [request])
    prefix = kv.find_prefix(request)
    assert (prefix.block_ids, prefix.num_tokens, prefix.host_ids) == ((), 10, (0, 1, 2))
    assert kv.start(request, prefix, 1) == [1, 2, 3], "three come back; the new token has room in the last"
    assert kv.host.num_used == 0 and request.swapped is None
    kv.free(request)


def test_what_the_prefix_cache_still_has_is_shared_not_copied() -> None:
    kv = make_kv(num_host_blocks=8)
    request = running(kv, 10)
    kv.publish(request)  # two full blocks
    first, second, _ = kv.block_tables[request.blocks.row, :3].tolist()
    assert len(kv.swap_out(request) or ()) == 3
    request.preempt()
    prefix = kv.find_prefix(request)
    assert (prefix.block_ids, prefix.num_tokens, prefix.host_ids) == ((first, second), 10, (2,))


def test_without_room_nothing_changes() -> None:
    for num_host_blocks in (0, 2):
        kv = make_kv(num_host_blocks=num_host_blocks)
        request = running(kv, 10)
        assert kv.swap_out(request) is None
        assert request.blocks is not None and kv.host.num_used == 0


def test_blocks_that_the_window_has_left_stay_null() -> None:
    kv = make_kv(num_host_blocks=8, window=5, max_step_tokens=4, enable_prefix_caching=False)
    request = running(kv, 15)
    assert kv.extend(request, 2) is not None  # slides: blocks 0 and 1 are behind the window
    request.num_scheduled_tokens = 17
    num_freed = request.blocks.num_freed
    assert num_freed == 2
    assert [block for block, _ in kv.swap_out(request) or ()] == [3, 4, 2], "its first block was free again"
    request.preempt()
    prefix = kv.find_prefix(request)
    assert prefix.block_ids == (NULL_BLOCK,) * 2 and prefix.host_ids == (0, 1, 2) and prefix.num_tokens == 17


def test_a_finished_request_gives_its_host_blocks_back() -> None:
    scheduler = make_scheduler(make_kv(num_blocks=6, num_host_blocks=8, enable_prefix_caching=False))
    first, second = make_request(6, 14), make_request(6, 14, arrival_time=1.0)
    for request in (first, second):
        scheduler.add(request)
    while not second.num_preemptions:
        run_step(scheduler)
    assert second.state is RequestState.WAITING and scheduler.kv.host.num_used == 2
    scheduler.finish(second)
    assert scheduler.kv.host.num_used == 0
    scheduler.check_integrity()


def test_a_schedule_names_what_goes_and_what_comes_back() -> None:
    """Five usable blocks of 4. The second goes when the first needs its third block, and returns when that one ends:
    it computes one token, where a recompute would compute nine."""
    scheduler = make_scheduler(make_kv(num_blocks=6, num_host_blocks=8, enable_prefix_caching=False))
    first, second = make_request(6, 14), make_request(6, 14, arrival_time=1.0)
    for request in (first, second):
        scheduler.add(request)
    plans = []
    while second.state is not RequestState.FINISHED:
        plan = run_step(scheduler)
        assert plan is not None
        plans.append(plan)
    (out,) = [plan for plan in plans if plan.swap_outs]
    assert out.preempted == out.swapped_out == [second]
    assert [host for _, host in out.swap_outs] == list(range(len(out.swap_outs)))
    (back,) = [plan for plan in plans if plan.swap_ins]
    assert back.started == [second] and back.num_new_tokens == [1]
    assert [host for host, _ in back.swap_ins] == [host for _, host in out.swap_outs]
    assert scheduler.kv.host.num_used == 0 and len(second.output_ids) == 14


def test_nobody_is_preempted_while_those_before_are_ending() -> None:
    """The first waits for its last token, in flight; the second waits a step for its blocks instead of going."""
    scheduler = make_scheduler(make_kv(num_blocks=4, enable_prefix_caching=False))
    first, second = make_request(4, 1), make_request(3, 9, arrival_time=1.0)
    for request in (first, second):
        scheduler.add(request)
    plan = scheduler.schedule(0.0)
    assert plan is not None and plan.requests == [first, second]
    blocker = scheduler.kv.pool.allocate(1)  # nothing is left
    second.append(500, 0.0)
    second.num_scheduled_tokens = second.num_computed_tokens = 4
    second.num_unscheduled_tokens = 1
    assert blocker is not None and scheduler.schedule(0.0) is None
    assert second.state is RequestState.RUNNING and scheduler.num_preemptions == 0
