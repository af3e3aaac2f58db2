"""Ranks as Ray actors in one placement group, on one machine or several. The only file that knows Ray.

Connects to the cluster of RAY_ADDRESS, or starts a local one. The version folder must be at the same path everywhere.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Sequence
from typing import Any

from trtdecode.errors import ConfigError
from trtdecode.executor.base import Batch, BatchResult
from trtdecode.executor.ranks.group import START_TIMEOUT_S, RankLost
from trtdecode.executor.ranks.task import RankFacts, RankTask
from trtdecode.executor.ranks.worker import RankWorker

#: Ray tells of an actor's death within a second or two.
_DEATH_NOTICE_S = 3.0


class RankActor:
    """One rank inside an actor's process."""

    def __init__(self, task: RankTask) -> None:
        # Ray shows an actor its own GPU alone.
        self._task = task if task.device == "cpu" else dataclasses.replace(task, device="cuda:0")
        self._worker: RankWorker | None = None

    def meeting_place(self) -> str:
        """A URL on this rank's machine that nothing uses now."""
        import ray

        address = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"tcp://{address}:{probe.getsockname()[1]}"

    def start(self, init_method: str) -> RankFacts:
        self._worker = RankWorker(self._task, init_method)
        return self._worker.facts()

    def execute(self, batch: Batch) -> BatchResult | None:
        assert self._worker is not None, "start comes first"
        return self._worker.execute(batch)

    def pid(self) -> int:
        return os.getpid()


class RayRanks:
    """See `group.RankGroup`. Raises RankLost where a rank does not come up, ConfigError without Ray or resources."""

    def __init__(self, tasks: Sequence[RankTask], *, start_timeout_s: float = START_TIMEOUT_S) -> None:
        ray = _import_ray()
        self._ray = ray
        if not ray.is_initialized():
            _connect(ray, len(tasks))  # for the life of this process: ranks that are lost come back sooner
        self._answering = next(task.rank for task in tasks if task.answers)
        self._actors: list[Any] = []
        self._placement: Any = None
        try:
            self._placement = _reserve(ray, tasks, start_timeout_s)
            self._actors = [self._actor(task) for task in tasks]
            (place,) = collect(self._ray, [self._actors[0].meeting_place.remote()], start_timeout_s)
            self._facts: list[RankFacts] = collect(
                self._ray, [actor.start.remote(place) for actor in self._actors], start_timeout_s
            )
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """By rank; of processes that may be on other machines."""
        return collect(self._ray, [actor.pid.remote() for actor in self._actors], START_TIMEOUT_S)

    def facts(self) -> list[RankFacts]:
        return self._facts

    def execute(self, batch: Batch) -> BatchResult:
        shared = self._ray.put(batch)
        result: BatchResult = collect(self._ray, [actor.execute.remote(shared) for actor in self._actors])[
            self._answering
        ]
        return result

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._placement is not None:
            self._ray.util.remove_placement_group(self._placement)
            self._placement = None

    def _actor(self, task: RankTask) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._placement, placement_group_bundle_index=task.rank)
        remote = self._ray.remote(RankActor)
        return remote.options(
            num_cpus=1, num_gpus=int(task.device != "cpu"), max_restarts=0, scheduling_strategy=strategy
        ).remote(task)


def collect(ray: Any, references: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
    """All results. The first failure ends the wait: ranks that wait for a dead one may never answer.

    Args:
        ray: the module, connected.
        references: what each rank is to answer, by rank.
        timeout_s: of silence; None: without end.

    Raises:
        RankLost: a rank failed or was silent; it names the rank that is the cause.
    """
    waiting = list(references)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=timeout_s)
        if not done:
            raise RankLost(f"rank {references.index(waiting[0])}: no answer after {timeout_s:g} s")
        try:
            ray.get(done[0])
        except ray.exceptions.RayError as error:
            cause, failure = _cause_of(ray, done[0], error, waiting)
            rank = references.index(cause)
            raise RankLost(f"rank {rank} of {len(references)} failed: {_first_line(failure)}") from failure
    return list(ray.get(list(references)))


def _cause_of(ray: Any, failed: Any, error: Exception, waiting: list[Any]) -> tuple[Any, Exception]:
    """Whose failure to name. When a rank dies, its peers' sums fail as well, and may be heard of first."""
    while waiting and not isinstance(error, ray.exceptions.RayActorError):
        done, waiting = ray.wait(waiting, num_returns=1, timeout=_DEATH_NOTICE_S)
        if not done:
            break
        try:
            ray.get(done[0])
        except ray.exceptions.RayActorError as death:
            return done[0], death
        except ray.exceptions.RayError:
            continue  # another peer
    return failed, error


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "distributed_executor_backend: ray is not installed; pip install 'trtdecode[distributed]', or use mp"
        ) from None
    return ray


def _connect(ray: Any, num_ranks: int) -> None:
    """Joins the cluster that RAY_ADDRESS names, or starts one on this machine."""
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address=address, **quiet)
        return
    num_cpus = max(num_ranks, os.cpu_count() or 1)
    ray.init(num_cpus=num_cpus, include_dashboard=False, object_store_memory=256 << 20, **quiet)


def _reserve(ray: Any, tasks: Sequence[RankTask], timeout_s: float) -> Any:
    """One bundle a rank, on as few machines as hold them."""
    bundles = [{"CPU": 1.0, **({} if task.device == "cpu" else {"GPU": 1.0})} for task in tasks]
    placement = ray.util.placement_group(bundles, strategy="PACK")
    try:
        ray.get(placement.ready(), timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        have = ray.cluster_resources()
        raise ConfigError(
            f"tensor_parallel_size x pipeline_parallel_size: {len(tasks)} ranks want {bundles[0]} each, the Ray "
            f"cluster has CPU {have.get('CPU', 0):g} and GPU {have.get('GPU', 0):g}; add machines or use fewer ranks"
        ) from None
    return placement


def _first_line(error: Exception) -> str:
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__).strip()
