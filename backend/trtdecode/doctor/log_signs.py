"""Lines of tritonserver's log (our backend writes there too) that name a cause, and what to do about each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sign:
    """A pattern, what it means, and the next step."""

    pattern: str
    meaning: str
    next_step: str


SIGNS = (
    Sign(
        r"No space left on device|[Uu]nable to (?:initialize|grow|create) shared memory",
        "/dev/shm is too small for the exchange between tritonserver and the stub",
        "start the container with a larger shm_size (1 GiB), or mount a memory-backed /dev/shm",
    ),
    Sign(
        r"a step has been running for",
        "a step took longer than watchdog_ms",
        "open the flight recorder's file named there with `trtdecode replay`",
    ),
    Sign(
        r"the executor failed|the sampler failed|starts afresh",
        "steps fail",
        "read the traceback in the log; the flight recorder's file reproduces the step",
    ),
    Sign(
        r"restarting tritonserver|giving up after|Stub process .* is not healthy",
        "the stub or the server died",
        "look for the reason just above it, and in dmesg for the out-of-memory killer",
    ),
    Sign(
        r"queue policy",
        "a queue policy in config.pbtxt makes this Triton hand requests over in polls of up to 500 ms",
        "remove it from dynamic_batching; max_queue_size, default_timeout_ms and priority_levels do the same job",
    ),
    Sign(
        r"metrics could not be published",
        "the backend gave up publishing metrics: the figures here stand still",
        "restart the server; report the line",
    ),
)


def found_signs(lines: Sequence[str]) -> list[tuple[Sign, int, str]]:
    """(sign, how many lines, the last such line) of each sign that is there."""
    found = []
    for sign in SIGNS:
        hits = [line for line in lines if re.search(sign.pattern, line)]
        if hits:
            found.append((sign, len(hits), hits[-1].strip()))
    return found
