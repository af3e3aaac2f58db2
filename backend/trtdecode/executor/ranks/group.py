"""Ranks as their driver sees them, whoever started them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from trtdecode.executor.base import Batch, BatchResult
from trtdecode.executor.ranks.task import RankFacts

#: Starting a rank means importing torch and reading its weights.
START_TIMEOUT_S = 600.0


class RankLost(Exception):
    """A rank ended, failed or never came up: the group is of no use any more. Names the rank and what happened."""


class RankGroup(Protocol):
    """Running ranks. After RankLost only `close` may be called."""

    @property
    def pids(self) -> list[int]:
        """By rank."""
        ...

    def facts(self) -> list[RankFacts]:
        """By rank."""
        ...

    def execute(self, batch: Batch) -> BatchResult:
        """One step on all ranks; the answering rank's result. Raises RankLost."""
        ...

    def close(self) -> None:
        """Ends the ranks' processes. Idempotent."""
        ...


StartRanks = Callable[[], RankGroup]
