"""A million steps of simulated service. Each seed is another service; a failing one is printed and is the bug report."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.world import World

NUM_SEEDS = 200
STEPS_PER_SEED = 5_000

_totals: Counter[str] = Counter()


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_every_request_gets_the_tokens_it_gets_alone(seed: int) -> None:
    world = World(seed)
    world.run(STEPS_PER_SEED)
    _totals.update(world.counts)
