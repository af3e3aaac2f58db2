"""A million steps of simulated service. Each seed is another service; the failing seed is printed: the bug report.

Every answer is compared with what the request gets alone, computed without blocks, batches or a loop, and
`check_integrity` runs after every step.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from simulation.deferred_worker import DeferredWorker
from simulation.world import World
from trtdecode.loop import Loop
from trtdecode.overlap import OverlappedLoop

NUM_SEEDS = 50
STEPS_PER_SEED = 10_000  # executed ones; times two loops: a million in all

#: What must have happened, often, for the million steps to mean anything.
EXPECTED = {
    "finished": 50_000,
    "cached": 10_000,
    "forked": 4_000,
    "preempted": 2_000,
    "preempted twice": 200,
    "swapped out": 10_000,
    "swapped in": 5_000,
    "promoted": 2_000,
    "stop strings": 4_000,
    "failed": 1_000,
    "cancelled waiting": 500,
    "cancelled running": 500,
    "late waiting": 500,
    "late running": 500,
    "queue full": 1_000,
    "never fits": 1_000,
}

_totals: Counter[str] = Counter()


def overlapped(*args: object, **options: object) -> Loop:
    return OverlappedLoop(*args, worker=DeferredWorker(), **options)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Injected faults are logged with their tracebacks; a thousand of them say nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("make_loop", [Loop, overlapped], ids=["plain", "overlapped"])
@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_every_request_gets_the_tokens_it_gets_alone(seed: int, make_loop: Callable[..., Loop]) -> None:
    world = World(seed, make_loop)
    world.run(STEPS_PER_SEED)
    _totals.update(world.counts, steps=world.executor.num_steps)


def test_the_simulation_has_seen_everything() -> None:
    if _totals["steps"] < 2 * NUM_SEEDS * STEPS_PER_SEED:
        pytest.skip("only part of the simulation was run")
    print(f"simulation: {dict(_totals)}")
    assert {name: _totals[name] for name, least in EXPECTED.items() if _totals[name] < least} == {}
