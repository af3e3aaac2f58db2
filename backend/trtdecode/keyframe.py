"""Everything that the scheduler's next decisions depend on, copied out of and back into scheduler, cache and requests.

The flight recorder takes one every few hundred steps, so that its ring can be replayed from the middle of a long run.
Taking one copies references and short lists only (well under a millisecond); turning it into JSON happens on a dump.
"""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any

from trtdecode.kv_cache.block_hash import BlockKey, content_of
from trtdecode.kv_cache.block_pool import PoolState
from trtdecode.kv_cache.manager import KVCacheManager
from trtdecode.kv_cache.sequence_blocks import SequenceBlocks, SwappedBlocks
from trtdecode.request import Request, RequestState, TokenEvent
from trtdecode.sampling.params import SamplingParams
from trtdecode.scheduler.scheduler import Scheduler

JsonObject = dict[str, Any]

_REQUEST_LISTS = ("running", "waiting", "finished_parents")
_COUNTS = (
    "num_computed_tokens",
    "num_scheduled_tokens",
    "num_pending",
    "num_unscheduled_tokens",
    "num_preemptions",
    "promoted",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """What is fixed about a request when it arrives; keeps no reference to the request or its callbacks."""

    request_id: int
    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    sample_index: int
    parent_id: int | None
    arrival_time: float
    max_total_tokens: int
    extra_keys: tuple[Any, ...]
    is_guided: bool

    @classmethod
    def of(cls, request: Request) -> Arrival:
        return cls(
            request.request_id,
            request.prompt_ids,
            request.params,
            request.seed,
            request.sample_index,
            None if request.parent is None else request.parent.request_id,
            request.arrival_time,
            request.max_total_tokens,
            request.extra_keys,
            request.guide is not None,
        )

    def to_json(self) -> JsonObject:
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, data: JsonObject) -> Arrival:
        params = SamplingParams(**{name: _tuples(value) for name, value in data["params"].items()})
        return cls(**{**data, "params": params, "extra_keys": _tuples(data["extra_keys"])})

    def to_request(self, parent: Request | None) -> Request:
        """A new request that decodes as this one did, as far as tokens go; nobody listens to its events."""
        return Request(
            self.prompt_ids,
            self.params,
            ignore,
            self.seed,
            self.arrival_time,
            sample_index=self.sample_index,
            parent=parent,
            max_total_tokens=self.max_total_tokens,
            extra_keys=self.extra_keys,
            request_id=self.request_id,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class RequestFrame:
    """One request between two steps."""

    arrival: Arrival
    output_ids: list[int]
    counts: list[int]  # _COUNTS
    num_prompt_logprobs: int
    blocks: list[int] | None  # row, num_published, num_freed, then the table
    swapped: list[int] | None  # num_tokens, num_freed, then the host blocks

    @classmethod
    def of(cls, request: Request, kv: KVCacheManager) -> RequestFrame:
        blocks, table = request.blocks, None
        if blocks is not None:
            entries = kv.block_tables[blocks.row, : blocks.num_blocks].tolist()
            table = [blocks.row, blocks.num_published, blocks.num_freed, *entries]
        swapped = request.swapped
        in_host = None if swapped is None else [swapped.num_tokens, swapped.num_freed, *swapped.host_ids]
        counts = [int(getattr(request, name)) for name in _COUNTS]
        return cls(Arrival.of(request), list(request.output_ids), counts, len(request.prompt_logprobs), table, in_host)

    def to_json(self) -> JsonObject:
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**data, "arrival": self.arrival.to_json()}

    @classmethod
    def from_json(cls, data: JsonObject) -> RequestFrame:
        return cls(**{**data, "arrival": Arrival.from_json(data["arrival"])})

    def to_request(self, parent: Request | None, kv: KVCacheManager) -> Request:
        """The request as it was, its table put into `kv`."""
        request = self.arrival.to_request(parent)
        request.output_ids = list(self.output_ids)
        for name, value in zip(_COUNTS, self.counts, strict=True):
            setattr(request, name, value)
        request.promoted = bool(request.promoted)
        request.prompt_logprobs = [None] * self.num_prompt_logprobs
        if self.swapped is not None:
            num_tokens, num_freed, *host_ids = self.swapped
            request.swapped = SwappedBlocks(num_tokens, num_freed, tuple(host_ids))
        if self.blocks is not None:
            row, num_published, num_freed, *table = self.blocks
            kv.block_tables[row, : len(table)] = table
            size = kv.block_size
            request.blocks = SequenceBlocks(
                row, len(table), len(table) * size, num_published, num_freed, (num_published + 1) * size
            )
            request.state = RequestState.RUNNING
            request.start_time = self.arrival.arrival_time
        return request


@dataclasses.dataclass(frozen=True, slots=True)
class Keyframe:
    """The state between two steps."""

    running: list[RequestFrame]
    waiting: list[RequestFrame]
    finished_parents: list[RequestFrame]  # of waiting requests
    num_starts: int
    free_rows: list[int]
    free_host_blocks: list[int]
    pool: PoolState

    @classmethod
    def take(cls, scheduler: Scheduler) -> Keyframe:
        kv = scheduler.kv
        parents = {r.parent.request_id: r.parent for r in scheduler.waiting if r.parent is not None}
        finished = [parent for parent in parents.values() if parent.state is RequestState.FINISHED]
        return cls(
            running=[RequestFrame.of(request, kv) for request in scheduler.running],
            waiting=[RequestFrame.of(request, kv) for request in scheduler.waiting],
            finished_parents=[RequestFrame.of(request, kv) for request in finished],
            num_starts=scheduler.policy.num_starts,
            free_rows=kv.free_rows(),
            free_host_blocks=kv.host.state(),
            pool=kv.pool.state(),
        )

    @property
    def requests(self) -> list[RequestFrame]:
        """Unfinished ones."""
        return [*self.running, *self.waiting]

    def restore(self, scheduler: Scheduler) -> dict[int, Request]:
        """Puts everything into a new scheduler; returns the requests by id."""
        kv = scheduler.kv
        requests: dict[int, Request] = {}
        in_order_of_id = sorted([*self.requests, *self.finished_parents], key=lambda frame: frame.arrival.request_id)
        for frame in in_order_of_id:  # parents have lower ids than those who share their prompt
            parent_id = frame.arrival.parent_id
            parent = None if parent_id is None else requests.get(parent_id)
            requests[frame.arrival.request_id] = frame.to_request(parent, kv)
        for frame in self.finished_parents:
            requests[frame.arrival.request_id].finish()
        scheduler.running = [requests[frame.arrival.request_id] for frame in self.running]
        scheduler.waiting = [requests[frame.arrival.request_id] for frame in self.waiting]
        scheduler.policy.num_starts = self.num_starts
        kv.restore(self.free_rows, self.pool, scheduler.running)
        kv.host.restore(self.free_host_blocks)
        return requests

    def to_json(self) -> JsonObject:
        keys = [
            [block_id, key.digest.hex(), array("i", key.content).tolist()]
            for block_id, key in enumerate(self.pool.keys)
            if key is not None
        ]
        return {
            **{name: [frame.to_json() for frame in getattr(self, name)] for name in _REQUEST_LISTS},
            "num_starts": self.num_starts,
            "free_rows": self.free_rows,
            "free_host_blocks": self.free_host_blocks,
            "pool": {
                "num_blocks": len(self.pool.keys),
                "free": self.pool.free,
                "cached": self.pool.cached,
                "keys": keys,
            },
        }

    @classmethod
    def from_json(cls, data: JsonObject) -> Keyframe:
        pool = data["pool"]
        keys: list[BlockKey | None] = [None] * pool["num_blocks"]
        for block_id, digest, token_ids in pool["keys"]:
            keys[block_id] = BlockKey(bytes.fromhex(digest), content_of(token_ids))
        frames = {name: [RequestFrame.from_json(frame) for frame in data[name]] for name in _REQUEST_LISTS}
        return cls(
            num_starts=data["num_starts"],
            free_rows=data["free_rows"],
            free_host_blocks=data["free_host_blocks"],
            pool=PoolState(pool["free"], pool["cached"], keys),
            **frames,
        )


def ignore(event: TokenEvent) -> None:
    """A replayed request has no client."""


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if isinstance(value, SamplingParams) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
