"""The flight recorder: the last few hundred steps, cheap enough to be always on.

It notes every input of the scheduler (arrivals, ends, sampled tokens, failures) and every decision (schedules with
their block moves), in order, and now and then a keyframe. `save` writes JSON; `replay.py` feeds the inputs to a new
scheduler and compares the decisions. The random key of a token is (seed, sample_index, position): the first two are
in the request's arrival, the position follows from the tokens before it.

The dump holds prompts and answers: treat it like them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from trtdecode.keyframe import Arrival, Keyframe
from trtdecode.manifest import ModelSpec
from trtdecode.protocols import SampleResult
from trtdecode.request import Request
from trtdecode.scheduler.scheduler import Schedule, Scheduler

FORMAT_VERSION = 2
MAX_FILES = 8  # dumps of one process; the oldest is overwritten


@dataclasses.dataclass(slots=True)
class _Segment:
    keyframe: Keyframe
    first_step: int
    entries: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    num_steps: int = 0


class Recorder:
    """Notes what one loop does. Methods other than `save` belong to the loop's thread.

    Args:
        scheduler: the loop's.
        spec: of the model, for the dump's header.
        num_steps: at least so many of the last steps are kept, at most twice as many; 0 turns it off.
    """

    def __init__(self, scheduler: Scheduler, spec: ModelSpec, num_steps: int) -> None:
        self._scheduler = scheduler
        self._spec = spec
        self._num_steps = num_steps
        self._segments: deque[_Segment] = deque(maxlen=2)
        self._file_numbers = itertools.count()
        self._directory: Path | None = None
        if num_steps:
            self._segments.append(_Segment(Keyframe.take(scheduler), 0))

    def step_begins(self) -> None:
        """Between two steps: starts a new segment when the last one is full."""
        if self._segments and (last := self._segments[-1]).num_steps >= self._num_steps:
            self._segments.append(_Segment(Keyframe.take(self._scheduler), last.first_step + last.num_steps))

    def arrived(self, request: Request) -> None:
        self._note("arrived", Arrival.of(request))

    def scheduled(self, plan: Schedule) -> None:
        if self._segments:
            self._segments[-1].num_steps += 1
            self._note("scheduled", *decisions(plan))

    def updated(self, plan: Schedule, samples: SampleResult) -> None:
        """The step succeeded. Rows whose sampling failed are noted as None; their requests' ends follow."""
        if self._segments:
            token_ids: list[int | None] = [*samples.token_ids]
            for row in samples.errors:
                token_ids[row] = None
            ids = [request.request_id for request in plan.requests]
            sampled = [request.request_id for request in plan.sampled]
            self._note("updated", ids, plan.num_past_tokens, plan.num_new_tokens, sampled, token_ids)

    def failed(self, plan: Schedule, text: str) -> None:
        self._note("failed", [request.request_id for request in plan.requests], text)

    def swap_lost(self, request: Request) -> None:
        self._note("swap_lost", request.request_id)

    def cache_lost(self) -> None:
        self._note("cache_lost")

    def finished(self, request: Request) -> None:
        self._note("finished", request.request_id)

    def _note(self, kind: str, *values: Any) -> None:
        if self._segments:
            self._segments[-1].entries.append((kind, *values))

    def save(self, path: Path | None = None) -> Path | None:
        """Writes the dump (by default into a directory that only this user can read); None when turned off.

        May be called by any thread while the loop's is busy; a step being noted meanwhile may be half there.
        """
        segments = list(self._segments)
        if not segments:
            return None
        if path is None:
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix=f"trtdecode-recorder-{os.getpid()}-"))
            path = self._directory / f"{next(self._file_numbers) % MAX_FILES}.json"
        path.write_text(json.dumps(self._to_json(segments)) + "\n", encoding="utf-8")
        return path

    def _to_json(self, segments: list[_Segment]) -> dict[str, Any]:
        scheduler, kv = self._scheduler, self._scheduler.kv
        entries = [entry for segment in segments for entry in list(segment.entries)]
        return {
            "format_version": FORMAT_VERSION,
            "spec": dataclasses.asdict(self._spec),
            "limits": {
                "num_blocks": kv.pool.num_blocks,
                "num_host_blocks": kv.host.num_blocks,
                "block_size": kv.block_size,
                "max_num_seqs": scheduler.max_num_seqs,
                "max_num_batched_tokens": scheduler.max_num_batched_tokens,
                "max_context_len": kv.max_context_len,
                "enable_prefix_caching": kv.enable_prefix_caching,
                "turn_every": scheduler.policy.turn_every,
                "chain_secret": kv.chain_secret.hex(),
            },
            "first_step": segments[0].first_step,
            "keyframe": segments[0].keyframe.to_json(),
            "entries": [[v.to_json() if isinstance(v, Arrival) else v for v in entry] for entry in entries],
        }


def decisions(plan: Schedule) -> list[Any]:
    """What a schedule decided, by request id, in a form that JSON keeps: the recorder notes it, the replay compares."""
    return [
        [request.request_id for request in plan.requests],
        plan.num_past_tokens,
        plan.num_new_tokens,
        [list(pair) for pair in plan.block_copies],
        [[request_id, list(block_ids)] for request_id, block_ids in plan.new_blocks],
        [request.request_id for request in plan.started],
        [request.request_id for request in plan.preempted],
        [list(pair) for pair in plan.swap_outs],
        [list(pair) for pair in plan.swap_ins],
    ]
