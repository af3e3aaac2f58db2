"""Whose failure `collect` names, with real Ray tasks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from trtdecode.executor.ranks.group import RankLost
from trtdecode.executor.ranks.ray_ranks import collect

pytestmark = pytest.mark.slow


class Peer:
    def answer(self, number: int) -> int:
        return number

    def fail(self) -> None:
        raise RuntimeError("connection reset by peer")

    def die(self, after_s: float) -> None:
        time.sleep(after_s)
        os._exit(1)

    def hang(self) -> None:
        time.sleep(60)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=256 << 20, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture
def peers(ray: Any) -> Iterator[list[Any]]:
    made = [ray.remote(Peer).options(num_cpus=0.5).remote() for _ in range(2)]
    collect(ray, [peer.answer.remote(0) for peer in made], 60)  # both are up
    yield made
    for peer in made:
        ray.kill(peer)


def test_results_come_by_rank(ray: Any, peers: list[Any]) -> None:
    assert collect(ray, [peers[0].answer.remote(5), peers[1].answer.remote(6)], 60) == [5, 6]


def test_a_death_is_named_though_a_peer_failed_first(ray: Any, peers: list[Any]) -> None:
    with pytest.raises(RankLost, match="rank 1 of 2 failed"):
        collect(ray, [peers[0].fail.remote(), peers[1].die.remote(0.5)], 60)


def test_without_a_death_the_first_failure_is_named(ray: Any, peers: list[Any]) -> None:
    begin = time.monotonic()
    with pytest.raises(RankLost, match=r"rank 0 of 2 failed: .*connection reset by peer"):
        collect(ray, [peers[0].fail.remote(), peers[1].hang.remote()], 60)
    assert time.monotonic() - begin < 30, "it does not wait for who hangs"


def test_silence_is_a_loss(ray: Any, peers: list[Any]) -> None:
    with pytest.raises(RankLost, match=r"rank 1: no answer after 0\.3 s"):
        collect(ray, [peers[0].answer.remote(5), peers[1].hang.remote()], 0.3)
