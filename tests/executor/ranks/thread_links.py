"""Ranks as threads of one process: what the graphs compute is tested without processes or torch.distributed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from trtdecode.executor.base import Batch, BatchResult, Executor
from trtdecode.manifest import RankLayout

T = TypeVar("T")
_WAIT_S = 60.0


class ThreadLinks:
    """`RankLinks` of one rank; make one set with `thread_links`."""

    def __init__(self, rank: int, layout: RankLayout, shared: _Shared) -> None:
        self._tensor_rank = rank % layout.tensor_parallel_size
        self._stage = rank // layout.tensor_parallel_size
        self._shared = shared
        self.num_reduced = 0

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        self.num_reduced += 1
        parts, barrier = self._shared.parts[self._stage], self._shared.barriers[self._stage]
        parts[self._tensor_rank] = part
        barrier.wait(_WAIT_S)
        total = torch.stack(parts).sum(0)
        barrier.wait(_WAIT_S)  # nobody overwrites a part that another still reads
        return total

    def receive(self, hidden: torch.Tensor) -> torch.Tensor:
        sent = self._shared.hidden[self._stage, self._tensor_rank].get(timeout=_WAIT_S)
        assert sent.shape == hidden.shape and sent.dtype == hidden.dtype
        return hidden.copy_(sent)

    def send(self, hidden: torch.Tensor) -> None:
        self._shared.hidden[self._stage + 1, self._tensor_rank].put(hidden.clone())


class _Shared:
    def __init__(self, layout: RankLayout) -> None:
        size, stages = layout.tensor_parallel_size, range(layout.pipeline_parallel_size)
        self.parts: list[list[Any]] = [[None] * size for _ in stages]
        self.barriers = [threading.Barrier(size) for _ in stages]
        self.hidden = {(stage, rank): queue.SimpleQueue() for stage in stages for rank in range(size)}


def thread_links(layout: RankLayout) -> list[ThreadLinks]:
    shared = _Shared(layout)
    return [ThreadLinks(rank, layout, shared) for rank in range(layout.num_ranks)]


class ThreadedRanks:
    """One executor over executors that run in a thread each.

    Args:
        make: called as (rank, links), in the rank's own thread, all at once.
    """

    name = "torch"

    def __init__(self, layout: RankLayout, make: Callable[[int, ThreadLinks], Executor]) -> None:
        self.links = thread_links(layout)
        self._answering = layout.rank_of(layout.pipeline_parallel_size - 1, 0)
        self._threads = [ThreadPoolExecutor(1) for _ in self.links]
        self.executors = self._on_all(lambda rank: make(rank, self.links[rank]))
        self.block_size = self.executors[0].block_size
        self.num_blocks = min(executor.num_blocks for executor in self.executors)

    def _on_all(self, call: Callable[[int], T]) -> list[T]:
        calls = [thread.submit(call, rank) for rank, thread in enumerate(self._threads)]
        return [one.result(_WAIT_S) for one in calls]

    def execute(self, batch: Batch) -> BatchResult:
        return self._on_all(lambda rank: self.executors[rank].execute(batch))[self._answering]

    def describe(self) -> dict[str, str]:
        return self.executors[0].describe()

    def close(self) -> None:
        for executor, thread in zip(self.executors, self._threads, strict=True):
            executor.close()
            thread.shutdown()
