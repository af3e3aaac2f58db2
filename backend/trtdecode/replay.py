"""Reproduces what a flight recorder's dump holds (`trtdecode replay FILE`).

Two questions, two replays:

    decisions   Does the scheduler decide the same again? A new scheduler gets the recorded arrivals, ends and tokens;
                every schedule and block move must come out as recorded. Needs no model.
    tokens      Does the model generate the same again? Every recorded request runs through a fresh loop with its seed,
                on a real executor; its tokens must begin with the recorded ones (f32 KV: token for token).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtdecode.config import ServingConfig
from trtdecode.errors import LoadError
from trtdecode.executor.base import Executor
from trtdecode.keyframe import Arrival, Keyframe
from trtdecode.kv_cache.manager import KVCacheManager
from trtdecode.loop import Loop
from trtdecode.manifest import ModelSpec
from trtdecode.protocols import Sampler
from trtdecode.recorder import FORMAT_VERSION, decisions
from trtdecode.request import Request
from trtdecode.scheduler.policy import PriorityPolicy
from trtdecode.scheduler.scheduler import Schedule, Scheduler

MAX_DIFFERENCES = 20

_DECISION_NAMES = (
    *("requests", "past tokens", "new tokens", "block copies", "new blocks", "started", "preempted"),
    *("swaps out", "swaps in"),
)


@dataclass(slots=True)
class ReplayReport:
    """What came out. `streams` are all tokens of each recorded request, as the dump has them."""

    num_steps: int = 0
    num_tokens: int = 0
    streams: dict[int, list[int]] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)  # the first few
    num_regenerated: int = 0  # requests that a real executor ran again
    num_skipped: int = 0  # guided requests: their grammar is not in the dump

    @property
    def is_same(self) -> bool:
        return not self.differences

    def differ(self, text: str) -> None:
        if len(self.differences) < MAX_DIFFERENCES:
            self.differences.append(text)


def replay_file(path: Path, executor: Executor | None = None, sampler: Sampler | None = None) -> ReplayReport:
    """Replays decisions, and with an executor and a sampler the tokens too.

    Raises:
        LoadError: not a dump, or one of another version.
    """
    try:
        dump = json.loads(Path(path).read_text("utf-8"))
        version = dump["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"{path}: not a flight recorder's dump ({error!r})") from error
    if version != FORMAT_VERSION:
        raise LoadError(f"{path}: format_version {version}, this trtdecode replays {FORMAT_VERSION}")
    replay = _Replay(dump)
    replay.run()
    if executor is not None and sampler is not None:
        replay.regenerate(executor, sampler)
    return replay.report


class _Replay:
    def __init__(self, dump: dict[str, Any]) -> None:
        self.report = ReplayReport()
        self._dump = dump
        spec: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in dump["spec"].items()}
        self._spec = ModelSpec(**spec)
        self._limits = limits = dump["limits"]
        kv = KVCacheManager(
            limits["num_blocks"],
            limits["block_size"],
            max_num_seqs=limits["max_num_seqs"],
            max_context_len=limits["max_context_len"],
            max_step_tokens=limits["max_num_batched_tokens"],
            window=self._spec.common_window,
            num_host_blocks=limits["num_host_blocks"],
            enable_prefix_caching=limits["enable_prefix_caching"],
            chain_secret=bytes.fromhex(limits["chain_secret"]),
        )
        self._scheduler = Scheduler(
            kv,
            max_num_seqs=limits["max_num_seqs"],
            max_num_batched_tokens=limits["max_num_batched_tokens"],
            policy=PriorityPolicy(limits["turn_every"]),
        )
        keyframe = Keyframe.from_json(dump["keyframe"])
        self._requests = keyframe.restore(self._scheduler)
        self._arrivals = [frame.arrival for frame in keyframe.requests]

    def run(self) -> None:
        for kind, *values in self._dump["entries"]:
            getattr(self, f"_{kind}")(*values)
            if self.report.differences:
                break  # everything after the first difference would differ too
        self.report.streams = {a.request_id: self._requests[a.request_id].output_ids for a in self._arrivals}

    def _arrived(self, data: dict[str, Any]) -> None:
        arrival = Arrival.from_json(data)
        parent = None if arrival.parent_id is None else self._requests.get(arrival.parent_id)
        request = arrival.to_request(parent)
        self._requests[request.request_id] = request
        self._arrivals.append(arrival)
        self._scheduler.add(request)

    def _scheduled(self, *recorded: Any) -> None:
        step = self._dump["first_step"] + self.report.num_steps
        self.report.num_steps += 1
        plan = self._scheduler.schedule(now=0.0)
        if plan is None:
            self.report.differ(f"step {step}: recorded {recorded[0]}, but nothing was scheduled")
            return
        for name, was, now in zip(_DECISION_NAMES, recorded, decisions(plan), strict=True):
            if was != now:
                self.report.differ(f"step {step}: {name} were {was}, now {now}")

    def _updated(
        self, ids: list[int], past: list[int], new: list[int], sampled: list[int], token_ids: list[int | None]
    ) -> None:
        # A step in flight at the keyframe may hold requests that had ended before it: they are not in the dump.
        known = [entry for entry in zip(ids, past, new, strict=True) if entry[0] in self._requests]
        plan = Schedule(
            [self._requests[i] for i, _, _ in known], [past for _, past, _ in known], [new for _, _, new in known]
        )
        self._scheduler.update(plan)
        for request_id, token_id in zip(sampled, token_ids, strict=True):
            if token_id is not None and request_id in self._requests:
                self._requests[request_id].append(token_id, now=0.0)
                self.report.num_tokens += 1

    def _failed(self, ids: list[int], text: str) -> None:
        """The ends that followed are entries of their own."""

    def _swap_lost(self, request_id: int) -> None:
        self._scheduler.kv.drop_swapped(self._requests[request_id])

    def _cache_lost(self) -> None:
        self._scheduler.kv.pool.forget()

    def _finished(self, request_id: int) -> None:
        self._scheduler.finish(self._requests[request_id])

    def regenerate(self, executor: Executor, sampler: Sampler) -> None:
        """Runs every recorded request again; one at a time per slot, whatever ran beside it then."""
        config = ServingConfig(
            max_num_seqs=self._limits["max_num_seqs"],
            max_num_batched_tokens=self._limits["max_num_batched_tokens"],
            max_context_len=self._limits["max_context_len"],
            max_queue_size=len(self._arrivals),
            recorder_steps=0,
        )
        loop = Loop(executor, sampler, config, self._spec)
        again: dict[int, Request] = {}
        for arrival in self._arrivals:
            if arrival.is_guided:
                self.report.num_skipped += 1
                continue
            again[arrival.request_id] = request = arrival.to_request(again.get(arrival.parent_id or 0))
            loop.submit(request)
        loop.drain()
        self.report.num_regenerated = len(again)
        for request_id, request in again.items():
            recorded = self.report.streams[request_id]
            if request.output_ids[: len(recorded)] != recorded:
                self.report.differ(f"request {request_id}: recorded {recorded}, now {request.output_ids}")
