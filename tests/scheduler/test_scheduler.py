"""What each step computes: exact tokens, rows, blocks, and who is preempted."""

from __future__ import annotations

import random

import pytest
from simulation.builders import make_kv, make_request, make_scheduler, run_step
from trtdecode.request import Request, RequestState
from trtdecode.scheduler.scheduler import Schedule, Scheduler


def shape(plan: Schedule | None, *requests: Request) -> list[tuple[int, int, int]]:
    """(which request, past, new) of each entry."""
    assert plan is not None
    return [
        (requests.index(r), past, new)
        for r, past, new in zip(plan.requests, plan.num_past_tokens, plan.num_new_tokens, strict=True)
    ]


def add(scheduler: Scheduler, *requests: Request) -> None:
    for request in requests:
        scheduler.add(request)


# -- the token budget -----------------------------------------------------------------------------------------------


def test_a_prompt_is_computed_in_chunks_and_then_decodes() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8, max_num_seqs=4)
    request = make_request(20, max_tokens=3)
    scheduler.add(request)
    plans = [run_step(scheduler) for _ in range(5)]
    assert [shape(plan, request) for plan in plans] == [
        [(0, 0, 8)],
        [(0, 8, 8)],
        [(0, 16, 4)],
        [(0, 20, 1)],
        [(0, 21, 1)],
    ]
    assert [bool(plan and plan.sampled) for plan in plans] == [False, False, True, True, True]
    assert request.state is RequestState.FINISHED  # token 23 was chosen and never computed
    assert scheduler.schedule(0.0) is None


def test_decodes_and_a_chunk_share_a_step() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    first, second = make_request(3), make_request([1] * 20)
    add(scheduler, first)
    run_step(scheduler)
    add(scheduler, second)
    assert shape(run_step(scheduler), first, second) == [(0, 3, 1), (1, 0, 7)]
    assert shape(run_step(scheduler), first, second) == [(0, 4, 1), (1, 7, 7)]


def test_a_long_prompt_ahead_does_not_stall_those_who_decode() -> None:
    """The long prompt has the better priority and would take the whole budget; its neighbours still get a token."""
    scheduler = make_scheduler(make_kv(100), max_num_batched_tokens=8)
    decoding = [make_request([i] * 2) for i in range(3)]
    add(scheduler, *decoding)
    run_step(scheduler)
    urgent = make_request(100, params={"priority": -1})
    scheduler.add(urgent)
    assert shape(run_step(scheduler), urgent, *decoding) == [(1, 2, 1), (2, 2, 1), (3, 2, 1), (0, 0, 5)]
    assert shape(run_step(scheduler), urgent, *decoding) == [(0, 5, 5), (1, 3, 1), (2, 3, 1), (3, 3, 1)]


def test_no_more_sequences_than_max_num_seqs() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    requests = [make_request([i] * 3, max_tokens=2) for i in range(3)]
    add(scheduler, *requests)
    assert shape(run_step(scheduler), *requests) == [(0, 0, 3), (1, 0, 3)]
    assert shape(run_step(scheduler), *requests) == [(0, 3, 1), (1, 3, 1)]
    assert shape(run_step(scheduler), *requests) == [(2, 0, 3)]


def test_the_budget_is_never_exceeded_and_always_used() -> None:
    scheduler = make_scheduler(make_kv(200), max_num_batched_tokens=10)
    add(scheduler, *[make_request([i] * 17) for i in range(4)])
    for _ in range(4 * 17 // 10):
        plan = run_step(scheduler)
        assert plan is not None and plan.num_tokens == 10


def test_the_budget_must_cover_one_token_each() -> None:
    with pytest.raises(ValueError, match=r"max_num_batched_tokens: got 7; must be at least max_num_seqs \(8\)"):
        make_scheduler(max_num_seqs=8, max_num_batched_tokens=7)


# -- order ----------------------------------------------------------------------------------------------------------


def test_waiting_requests_start_by_priority_then_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    late = make_request(1, 1, arrival_time=2.0)
    early = make_request(1, 1, arrival_time=1.0)
    urgent = make_request(1, 1, arrival_time=3.0, params={"priority": -1})
    patient = make_request(1, 1, arrival_time=0.0, params={"priority": 9})
    add(scheduler, late, early, urgent, patient)
    started = [plan.started[0] for _ in range(4) if (plan := run_step(scheduler))]
    assert started == [urgent, early, late, patient]


def test_nobody_overtakes_a_request_that_waits_for_blocks() -> None:
    scheduler = make_scheduler(make_kv(9))
    running, large, small = make_request([1] * 20, 8), make_request([2] * 20), make_request([3])
    add(scheduler, running)
    run_step(scheduler)
    add(scheduler, large, small)
    for _ in range(7):
        plan = run_step(scheduler)
        assert plan is not None and plan.started == []
    plan = run_step(scheduler)
    assert plan is not None and plan.started == [large, small]


def test_a_start_leaves_a_block_for_each_running_sequence() -> None:
    """Eight blocks, four taken: two sequences run, so a newcomer of three blocks waits although four are there."""
    scheduler = make_scheduler(make_kv(9))
    add(scheduler, make_request([1] * 8), make_request([2] * 8))
    run_step(scheduler)
    add(scheduler, newcomer := make_request([3] * 4))
    assert scheduler.kv.pool.num_available == 4
    plan = run_step(scheduler)  # both neighbours take a block; two are left for them, none for the newcomer
    assert plan is not None and plan.started == [] and newcomer.state is RequestState.WAITING


def test_blocks_promised_to_unfinished_prompts_are_not_given_away() -> None:
    scheduler = make_scheduler(make_kv(11), max_num_batched_tokens=8)
    long, short = make_request([1] * 32), make_request([2] * 8)
    add(scheduler, long, short)
    for _ in range(4):
        plan = run_step(scheduler)
        assert plan is not None and short not in plan.started and plan.preempted == []


def test_nobody_starts_in_a_step_that_preempts() -> None:
    """What preemption freed is for those who run; a row and two blocks are free, and an urgent request waits."""
    kv = make_kv(6, enable_prefix_caching=False)
    scheduler = make_scheduler(kv, max_num_seqs=2)
    first, second = make_request([1] * 7, 9), make_request([2] * 7, 9)
    add(scheduler, first, second)
    run_step(scheduler)
    urgent = make_request([3], 1, params={"priority": -1})
    add(scheduler, urgent)
    plan = None
    while plan is None or not plan.preempted:
        plan = run_step(scheduler)
    assert (plan.preempted, plan.started) == ([second], [])
    plan = run_step(scheduler)
    assert plan is not None and plan.started == [urgent]


def test_every_eighth_start_belongs_to_the_longest_waiting() -> None:
    """A flood of urgent requests: the patient one, there first, starts eighth and is promoted."""
    scheduler = make_scheduler(max_num_seqs=1, turn_every=8)
    patient = make_request(1, 1, arrival_time=0.0, params={"priority": 5})
    scheduler.add(patient)
    started: list[Request] = []
    for index in range(10):
        scheduler.add(make_request(1, 1, arrival_time=1.0 + index, params={"priority": 0}))
        plan = run_step(scheduler)
        assert plan is not None
        started += plan.started
    assert started.index(patient) == 7
    assert [request.promoted for request in started] == [False] * 7 + [True] + [False] * 2


def test_a_promoted_request_is_not_preempted_for_urgent_ones() -> None:
    scheduler = make_scheduler(make_kv(5), turn_every=1)
    patient = make_request([1] * 7, 8, params={"priority": 5})
    scheduler.add(patient)
    run_step(scheduler)
    scheduler.policy.turn_every = 8
    urgent = make_request([2] * 4, 8, arrival_time=1.0)
    scheduler.add(urgent)
    preempted = [plan.preempted for _ in range(6) if (plan := run_step(scheduler)) and plan.preempted]
    assert preempted == [[urgent]]


# -- preemption -----------------------------------------------------------------------------------------------------


def test_preemption_takes_the_lowest_priority_then_the_newest() -> None:
    scheduler = make_scheduler(make_kv(9, enable_prefix_caching=False))
    urgent = make_request([1] * 4, 20, arrival_time=2.0)
    old = make_request([2] * 4, 20, arrival_time=0.0, params={"priority": 1})
    new = make_request([3] * 4, 20, arrival_time=1.0, params={"priority": 1})
    add(scheduler, urgent, old, new)
    preempted = []
    while scheduler.num_requests:
        plan = run_step(scheduler)
        assert plan is not None
        preempted += plan.preempted
    assert preempted[:2] == [new, old]
    assert scheduler.num_preemptions == len(preempted)


def test_a_preempted_request_keeps_its_tokens_and_computes_them_again() -> None:
    scheduler = make_scheduler(make_kv(7, enable_prefix_caching=False))
    first, second = make_request([1] * 8, 12), make_request([2] * 8, 12)
    add(scheduler, first, second)
    while not (plan := run_step(scheduler)) or not plan.preempted:
        assert plan is not None
    assert plan.preempted == [second]
    assert (second.num_output_tokens, second.num_computed_tokens, second.blocks) == (5, 0, None)
    while not plan or second not in plan.started:
        plan = run_step(scheduler)
    assert shape(plan, second) == [(0, 0, 13)]
    assert plan.sampled == [second]
    assert second.num_preemptions == 1


def test_a_chunk_shrinks_before_anybody_is_preempted() -> None:
    scheduler = make_scheduler(make_kv(9, enable_prefix_caching=False), max_num_batched_tokens=8)
    patient, long = make_request([1] * 2, params={"priority": 1}), make_request([2] * 24, 1)
    add(scheduler, patient)
    run_step(scheduler)
    add(scheduler, long)
    assert shape(run_step(scheduler), patient, long) == [(0, 2, 1), (1, 0, 7)]
    taken = scheduler.kv.pool.allocate(scheduler.kv.pool.num_available - 1)
    plan = scheduler.schedule(0.0)
    assert shape(plan, patient, long) == [(1, 7, 5), (0, 3, 1)]  # not 7 tokens: one block is left
    assert taken and plan is not None and plan.preempted == []


def test_the_last_to_run_may_preempt_itself() -> None:
    scheduler = make_scheduler(make_kv(6, enable_prefix_caching=False))
    first, second = make_request([1] * 4, 12), make_request([2] * 7, 12)
    add(scheduler, first, second)
    run_step(scheduler)
    run_step(scheduler)
    scheduler.kv.pool.allocate(1)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    assert (plan.requests, plan.preempted) == ([first], [second])


# -- samples that share a prompt ------------------------------------------------------------------------------------


def test_samples_wait_for_the_prompt_and_then_fork_it() -> None:
    scheduler = make_scheduler(make_kv(enable_prefix_caching=False), max_num_batched_tokens=8)
    parent = make_request(10)
    children = [make_request(10, parent=parent, sample_index=i) for i in (1, 2)]
    add(scheduler, parent, *children)
    assert shape(run_step(scheduler), parent, *children) == [(0, 0, 8)]
    assert shape(run_step(scheduler), parent, *children) == [(0, 8, 2)]
    plan = run_step(scheduler)
    assert shape(plan, parent, *children) == [(0, 10, 1), (1, 9, 1), (2, 9, 1)]
    assert plan is not None and plan.block_copies == [(3, 4), (3, 5)]
    assert [child.num_cached_tokens for child in children] == [9, 9]
    assert scheduler.kv.pool.num_usable - scheduler.kv.pool.num_available == 5


def test_others_may_start_while_samples_wait_for_their_prompt() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    parent = make_request(12)
    child = make_request(12, parent=parent, sample_index=1)
    other = make_request([1, 2])
    add(scheduler, parent, child)
    run_step(scheduler)
    add(scheduler, other)
    assert shape(run_step(scheduler), parent, child, other) == [(0, 8, 4), (2, 0, 2)]


def test_samples_go_on_alone_when_the_first_one_ends_early() -> None:
    scheduler = make_scheduler(make_kv(enable_prefix_caching=False), max_num_batched_tokens=8)
    parent = make_request(12)
    child = make_request(12, parent=parent, sample_index=1)
    add(scheduler, parent, child)
    run_step(scheduler)
    scheduler.finish(parent)
    assert shape(run_step(scheduler), parent, child) == [(1, 0, 8)]


# -- one step in flight ---------------------------------------------------------------------------------------------


def test_a_step_can_be_scheduled_before_the_last_ones_tokens_are_known() -> None:
    scheduler = make_scheduler()
    request = make_request(5, max_tokens=3)
    scheduler.add(request)
    first, second, third = (scheduler.schedule(0.0) for _ in range(3))
    assert [shape(plan, request) for plan in (first, second, third)] == [[(0, 0, 5)], [(0, 5, 1)], [(0, 6, 1)]]
    assert (request.num_computed_tokens, request.num_scheduled_tokens, request.num_pending) == (0, 7, 3)
    assert scheduler.schedule(0.0) is None  # its third token is on the way and is the last
    for plan in (first, second, third):
        assert plan is not None
        scheduler.update(plan)
        request.append(500, 0.0)
    assert (request.num_computed_tokens, request.num_pending, request.num_tokens) == (7, 0, 8)


def test_a_request_preempted_in_flight_waits_for_its_token() -> None:
    scheduler = make_scheduler(make_kv(6, enable_prefix_caching=False))
    first, second = make_request([1] * 7, 9), make_request([2] * 7, 9)
    add(scheduler, first, second)
    in_flight = [scheduler.schedule(0.0) for _ in range(3)]
    assert in_flight[2] is not None and in_flight[2].preempted == [second]
    assert second.num_pending == 2
    scheduler.finish(first)
    assert scheduler.schedule(0.0) is None
    for plan in in_flight[:2]:
        assert plan is not None
        scheduler.update(plan)
        second.append(500, 0.0)
    assert second.num_computed_tokens == 0
    assert shape(scheduler.schedule(0.0), second) == [(0, 0, 9)]


# -- the rest -------------------------------------------------------------------------------------------------------


def test_finish_takes_out_waiting_and_running_requests() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    running, waiting = make_request(5), make_request(5)
    add(scheduler, running, waiting)
    run_step(scheduler)
    scheduler.finish(waiting)
    scheduler.finish(running)
    assert scheduler.num_requests == 0
    assert scheduler.kv.pool.num_available == scheduler.kv.pool.num_usable
    scheduler.check_integrity()


@pytest.mark.parametrize("damage", ["order", "state", "counts", "blocks"])
def test_check_integrity_sees_damage(damage: str) -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    requests = [make_request(5) for _ in range(3)]
    add(scheduler, *requests)
    run_step(scheduler)
    if damage == "order":
        scheduler.running.reverse()
    elif damage == "state":
        requests[0].state = RequestState.WAITING
    elif damage == "counts":
        requests[0].num_computed_tokens += 1
    else:
        requests[2].blocks = requests[0].blocks
    with pytest.raises(AssertionError):
        scheduler.check_integrity()


def test_waste_of_a_mixed_load_is_at_most_half_a_block_a_sequence() -> None:
    """256 sequences, lengths around 512, blocks of 32: what is allocated and unused, averaged over the run."""
    rng = random.Random(1)
    kv = make_kv(6000, 32, max_num_seqs=256, max_context_len=2048, enable_prefix_caching=False)
    scheduler = make_scheduler(kv, max_num_seqs=256, max_num_batched_tokens=4096)
    add(scheduler, *[make_request(rng.randint(64, 900), rng.randint(1, 128)) for _ in range(300)])
    unused = slots = sequences = 0
    while scheduler.num_requests:
        plan = scheduler.schedule(0.0)
        assert plan is not None
        waste = kv.waste(scheduler.running)
        unused, slots, sequences = unused + waste.num_unused, slots + waste.num_slots, sequences + waste.num_sequences
        scheduler.update(plan)
        for request in plan.sampled:
            request.append(1, 0.0)
            if request.num_tokens == request.max_total_tokens:
                scheduler.finish(request)
    print(
        f"waste: {unused / sequences:.2f} slots a sequence of blocks of 32, {unused / slots:.2%} of what is allocated"
    )
    assert unused / sequences <= 16
    assert unused / slots < 0.04
