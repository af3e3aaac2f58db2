"""Picks the tokens of each step: a budget of tokens, a limit of sequences, and no phases.

Every running sequence is granted one token; what is left of the budget goes to those with more to compute (prompts,
and what preemption lost), in the policy's order, then to waiting requests. So a long prompt never stalls a decoding
neighbour, and a step never exceeds `max_num_batched_tokens`.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from trtdecode.kv_cache.manager import KVCacheManager
from trtdecode.request import Request, RequestState
from trtdecode.scheduler.policy import PriorityPolicy


@dataclass(slots=True)
class Schedule:
    """One step's decisions. Entry i of the first three lists belongs together."""

    requests: list[Request] = field(default_factory=list)
    num_past_tokens: list[int] = field(default_factory=list)  # in the cache, or on the way, before this step
    num_new_tokens: list[int] = field(default_factory=list)
    sampled: list[Request] = field(default_factory=list)  # get a token from this step, in the order of `requests`
    unsampled_entries: list[int] = field(default_factory=list)  # indices of the others: prompts that go on
    block_copies: list[tuple[int, int]] = field(default_factory=list)  # (source, target), before the step
    swap_outs: list[tuple[int, int]] = field(default_factory=list)  # (block, host block), before everything else
    swap_ins: list[tuple[int, int]] = field(default_factory=list)  # (host block, block), after those
    new_blocks: list[tuple[int, list[int]]] = field(default_factory=list)  # (request id, block ids)
    prompt_ranges: list[tuple[Request, int, int]] = field(default_factory=list)  # positions whose logits are wanted
    started: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    swapped_out: list[Request] = field(default_factory=list)  # those of them whose K/V `swap_outs` saves

    def add(self, request: Request, num_new_tokens: int) -> None:
        """Puts a request into the step; its blocks are allocated."""
        self.num_past_tokens.append(request.num_scheduled_tokens)
        self.num_new_tokens.append(num_new_tokens)
        if request.schedule(num_new_tokens):
            self.sampled.append(request)
        else:
            self.unsampled_entries.append(len(self.requests))
        self.requests.append(request)

    @property
    def num_tokens(self) -> int:
        return sum(self.num_new_tokens)


class Scheduler:
    """Holds the waiting and the running requests and changes them once a step. One thread.

    Args:
        kv: gives blocks; has `max_num_seqs` table rows.
        max_num_seqs: sequences in one step.
        max_num_batched_tokens: tokens in one step; at least max_num_seqs, so that every running sequence moves on.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policy: PriorityPolicy | None = None,
    ) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: got {max_num_batched_tokens}; must be at least max_num_seqs "
                f"({max_num_seqs}), so that every running sequence gets a token each step"
            )
        self.kv = kv
        self.policy = policy or PriorityPolicy()
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.running: list[Request] = []  # in the policy's order
        self.waiting: list[Request] = []  # in the policy's order
        self.num_preemptions = 0

    @property
    def num_requests(self) -> int:
        return len(self.running) + len(self.waiting)

    def add(self, request: Request) -> None:
        """Takes a new request in."""
        insort(self.waiting, request, key=self.policy.key)

    # -- one step ---------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> Schedule | None:
        """Decides the next step and allocates its blocks; None when there is nothing to compute."""
        plan = Schedule()
        budget, promised = self._continue_running(plan)
        if not plan.preempted:  # what preemption freed is for those who run
            self._start_waiting(plan, budget, promised, now)
        return plan if plan.requests else None

    def _continue_running(self, plan: Schedule) -> tuple[int, int]:
        """Grants every running sequence its tokens.

        Returns:
            The tokens left, and the blocks that running sequences will still need for tokens they already have.
        """
        running = self.running
        spare = self.max_num_batched_tokens - len(running)  # beyond one token for each
        promised = 0
        for request in running:  # preemption takes from its end, never what this loop has passed
            num_new = num_wanted = request.num_unscheduled_tokens
            if num_new > 1:
                num_new = min(num_new, 1 + spare)
            elif num_new == 0:  # its last token is in flight
                spare += 1
                continue
            blocks = request.blocks
            assert blocks is not None
            if request.num_scheduled_tokens + num_new > blocks.num_slots:
                num_victims = len(plan.preempted)
                num_new = self._make_room(plan, request, num_new)
                spare += len(plan.preempted) - num_victims
                if num_new == 0:
                    break  # preempted itself (it was the last), or waits for those before it, who are ending
            if num_new > 1:
                spare -= num_new - 1
            if num_wanted > num_new:
                promised += self.kv.num_resident_blocks(request.num_tokens) - blocks.num_blocks + blocks.num_freed
            plan.add(request, num_new)
        return spare, max(0, promised)

    def _make_room(self, plan: Schedule, request: Request, num_new: int) -> int:
        """Blocks for up to `num_new` tokens of a running request: fewer tokens before preempting anybody.

        Returns:
            Tokens that have room; 0 if the request itself had to be preempted, or if all before it wait for their last
            token: their blocks are free after the step in flight.
        """
        while True:
            block_ids = self.kv.extend(request, num_new)
            if block_ids is None and num_new > 1:
                num_new = min(num_new, max(1, self.kv.num_tokens_available(request)))
                block_ids = self.kv.extend(request, num_new)
            if block_ids is not None:
                if block_ids:
                    plan.new_blocks.append((request.request_id, block_ids))
                return num_new
            if not plan.requests and request is not self.running[0]:
                return 0
            victim = self.policy.victim(self.running)
            self._preempt(plan, victim)
            if victim is request:
                return 0

    def _preempt(self, plan: Schedule, victim: Request) -> None:
        """Swaps out where the host pool has room; else the victim's tokens are computed again."""
        assert len(self.running) > 1, "a sequence that fits the pool alone ran out of blocks"
        self.running.remove(victim)
        copies = self.kv.swap_out(victim)
        if copies is None:
            self.kv.free(victim)
        else:
            plan.swap_outs += copies
            plan.swapped_out.append(victim)
        victim.preempt()
        plan.preempted.append(victim)
        insort(self.waiting, victim, key=self.policy.key)
        self.num_preemptions += 1

    def _start_waiting(self, plan: Schedule, budget: int, promised: int, now: float) -> None:
        """Starts waiting requests in order, until budget, rows or blocks run out. Nobody overtakes one that waits for
        blocks: a large request must get its turn."""
        kv = self.kv
        while budget > 0 and len(self.running) < self.max_num_seqs:
            request = self.policy.choose(self._ready())
            if request is None:
                return
            prefix = kv.find_prefix(request)
            num_wanted = request.num_tokens - prefix.num_tokens
            num_new = min(num_wanted, budget)
            num_later = kv.num_resident_blocks(request.num_tokens) - kv.blocks_for(prefix.num_tokens + num_new)
            num_later = max(0, num_later)
            headroom = promised + num_later + self.policy.headroom(len(self.running)) if self.running else 0
            block_ids = kv.start(request, prefix, num_new, headroom)
            if block_ids is None:
                return
            self.waiting.remove(request)
            self.policy.started(request)
            request.start(prefix.num_tokens, now)
            insort(self.running, request, key=self.policy.key)
            if prefix.copy_from is not None:
                plan.block_copies.append((prefix.copy_from, block_ids[0]))
            plan.swap_ins += zip(prefix.host_ids, block_ids, strict=False)  # the others are for new tokens
            plan.new_blocks.append((request.request_id, block_ids))
            plan.started.append(request)
            plan.add(request, num_new)
            budget -= num_new

    def _ready(self) -> Iterator[Request]:
        """Waiting requests that could start: not while a token of theirs is in flight, nor while the sample whose
        prompt they share is still computing it."""
        for request in self.waiting:
            parent = request.parent
            if parent is not None and not parent.output_ids and parent.state is not RequestState.FINISHED:
                continue
            if not request.num_pending:
                yield request

    def update(self, plan: Schedule) -> None:
        """The step succeeded: its K/V are in the cache, and full blocks may be shared from now on."""
        kv = self.kv
        for request, num_past, num_new in zip(plan.requests, plan.num_past_tokens, plan.num_new_tokens, strict=True):
            blocks = request.blocks
            if blocks is None:
                continue  # ended or preempted while the step was in flight
            num_computed = num_past + num_new
            request.complete(num_computed)
            if num_computed >= blocks.publish_at:
                kv.publish(request)

    def finish(self, request: Request) -> None:
        """Takes a request out, waiting or running, and frees its blocks."""
        queue = self.waiting if request.state is RequestState.WAITING else self.running
        position = bisect_left(queue, self.policy.key(request), key=self.policy.key)
        assert queue[position] is request, f"request {request.request_id} is not where its key says"
        del queue[position]
        self.kv.free(request)
        request.finish()

    # -- checks -----------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Queues, counts and blocks agree. Raises AssertionError."""
        for queue, state in ((self.waiting, RequestState.WAITING), (self.running, RequestState.RUNNING)):
            keys = [self.policy.key(request) for request in queue]
            assert all(a < b for a, b in itertools.pairwise(keys)), f"{state.value}: out of order or twice"
            for request in queue:
                assert request.state is state, f"request {request.request_id} is {request.state} in {state.value}"
                assert 0 <= request.num_computed_tokens <= request.num_scheduled_tokens, "computed overtook scheduled"
                assert request.num_scheduled_tokens <= request.num_tokens + request.num_pending, "scheduled too much"
        assert len(self.running) <= self.max_num_seqs
        assert all(request.blocks is None for request in self.waiting), "a waiting request holds blocks"
        self.kv.check_integrity(self.running, self.waiting)
