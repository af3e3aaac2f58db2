"""What a question of a decision tree is asked with, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trtdecode.doctor.readings import Readings


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a yes begins."""

    full_pool: float = 0.90  # used / total KV blocks, when something waits
    waiting_share: float = 0.5  # of the scrapes
    triton_queue_s: float = 0.05  # mean; a hand-over takes a millisecond or so
    busy_executor: float = 0.70  # time in the executor / time in which requests ran
    partly_idle: float = 0.5  # requests ran at fewer of the scrapes than this
    ridge_tokens: float = 16.0  # tokens a step from which on arithmetic, not reading the weights, takes the time
    batch_waits: float = 1.2  # an encoder's wait / the time of a batch: whoever waits longer was left out of one
    full_run_tokens: float = 256.0  # of an encoder: runs are cut at max_num_batched_tokens (512)


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer: a name, the figures that decided, and what to do."""

    bottleneck: str  # faults, idle, stalled, kv, queue, delay, batch size, host, compute, memory bandwidth
    evidence: list[str]
    next_step: str
    also: list[str] = field(default_factory=list)  # faults of the past, and signs in the log with their next steps


Question = Callable[[Readings, Limits], Finding | None]

#: Counters of what is broken, of decoders and encoders, and how they are called.
FAULTS = {
    "trtdecode_step_failures_total": "steps failed",
    "trtdecode_recoveries_total": "recoveries of the loop",
    "trtdecode_watchdog_dumps_total": "steps longer than watchdog_ms",
    "trtdecode_server_restarts_total": "restarts of the server",
}


def is_broken(r: Readings, limits: Limits) -> Finding | None:
    """The first question of every tree."""
    evidence = [f"{r.gain(name):g} {text} in {r.seconds:.1f} s" for name, text in FAULTS.items() if r.gain(name)]
    if not evidence:
        return None
    return Finding("faults", evidence, "read the server's log first (--log FILE): a fault explains slow answers too")
