"""One executor over several ranks, driven like any other. A rank that is lost takes the KV cache with it."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

from trtdecode.executor.base import Batch, BatchResult, CacheLost
from trtdecode.executor.ranks.group import START_TIMEOUT_S, RankGroup, RankLost, StartRanks
from trtdecode.manifest import RankLayout

log = logging.getLogger(__name__)


class ParallelExecutor:
    """See `base.Executor`.

    Args:
        start: starts all ranks; called again whenever they were lost.

    Raises:
        RankLost: the ranks did not come up.
    """

    name = "torch"
    num_host_blocks = 0  # preempted requests are recomputed

    def __init__(self, start: StartRanks, layout: RankLayout) -> None:
        self._start = start
        self._layout = layout
        self._is_closed = False
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="trtdecode-ranks")
        self._group: RankGroup | None = start()
        self._starting: Future[RankGroup] | None = None
        facts = self._group.facts()
        self._description = facts[0].description
        self.block_size = facts[0].block_size
        self.num_blocks = min(fact.num_blocks for fact in facts)
        self.chooses_tokens = all(fact.chooses_tokens for fact in facts)
        self.num_restarts = 0

    @property
    def pids(self) -> list[int]:
        """Of the ranks' processes, by rank."""
        return self._running_group().pids

    def execute(self, batch: Batch) -> BatchResult:
        """Raises CacheLost when a rank is lost; the ranks start again meanwhile, and the next step waits for them."""
        group = self._running_group()
        try:
            return group.execute(batch)
        except RankLost as error:
            if self._is_closed:  # under a step that did not end
                raise
            log.error("%s; starting all %d ranks again", error, self._layout.num_ranks)
            self._group = None
            self._starting = self._starter.submit(self._restart, group)
            raise CacheLost(f"{error}; the ranks are being started again, send the request again") from error

    def _running_group(self) -> RankGroup:
        if self._group is None:
            starting, self._starting = self._starting or self._starter.submit(self._start), None
            self._group = starting.result(START_TIMEOUT_S)
        return self._group

    def _restart(self, lost: RankGroup) -> RankGroup:
        lost.close()
        group = self._start()
        if min(fact.num_blocks for fact in group.facts()) < self.num_blocks:
            group.close()
            raise RankLost(f"after the restart there is room for fewer than {self.num_blocks} KV blocks")
        self.num_restarts += 1
        return group

    def describe(self) -> dict[str, str]:
        return {**self._description, "ranks": f"{self._layout.num_ranks} ({self._layout})"}

    def close(self) -> None:
        self._is_closed = True
        if self._starting is not None:
            self._starting.add_done_callback(_close_started)
            self._starting = None
        if self._group is not None:
            self._group.close()
            self._group = None
        self._starter.shutdown()


def _close_started(starting: Future[RankGroup]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
