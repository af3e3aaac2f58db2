"""Both loops in the simulation, stepped with every check: what the tests of the loop share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from simulation.deferred_worker import DeferredWorker
from simulation.fake_sampler import solo
from simulation.world import EOS, VOCAB_SIZE
from trtdecode.loop import Loop
from trtdecode.overlap import OverlappedLoop
from trtdecode.request import Request


def deferred(*args: Any, **kwargs: Any) -> Loop:
    return OverlappedLoop(*args, worker=DeferredWorker(), **kwargs)


@pytest.fixture(params=[Loop, deferred], ids=["plain", "overlapped"])
def loop_class(request: pytest.FixtureRequest) -> Callable[..., Loop]:
    made: Callable[..., Loop] = request.param
    return made


@pytest.fixture
def silent() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def steps(loop: Loop, count: int = 200) -> None:
    """Steps until nothing is left, with every check."""
    for _ in range(count):
        if not loop.step() and not loop.admission.num_inside:
            return
        loop.check_integrity()
    raise AssertionError(f"{loop.admission.num_inside} requests are still inside")


def alone(request: Request) -> list[int]:
    return solo(request, VOCAB_SIZE, EOS, 0)[0]


def assert_nothing_left(loop: Loop) -> None:
    loop.check_integrity()
    assert loop.scheduler.num_requests == loop.admission.num_inside == 0
    assert loop.kv.pool.num_available == loop.kv.pool.num_usable


class Words:
    """A text output of one word a token, which stops at `stop_at` and holds back nothing but a full stop."""

    def __init__(self, stop_at: int | None = None, fail_at: int | None = None) -> None:
        self.num_tokens = 0
        self.stop_at, self.fail_at = stop_at, fail_at

    def push(self, token_ids: Sequence[int]) -> tuple[str, bool]:
        self.num_tokens += len(token_ids)
        if self.num_tokens == self.fail_at:
            raise ValueError("bad bytes")
        return f"w{self.num_tokens} ", self.num_tokens == self.stop_at

    def flush(self) -> str:
        return "."
