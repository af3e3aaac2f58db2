"""The host pool: which host blocks hold K/V of preempted sequences. Knows nothing of requests. One thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class HostPool:
    """Hands out ids 0 to num_blocks - 1; with 0 blocks nothing can be swapped out."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: lowest ids first

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks, or None (and nothing changed) if there are not so many."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def release(self, host_ids: Sequence[int]) -> None:
        self._free.extend(reversed(host_ids))

    def state(self) -> list[int]:
        """A copy of the free list, for the flight recorder."""
        return list(self._free)

    def restore(self, free: Iterable[int]) -> None:
        """Takes over a copied state."""
        self._free = list(free)

    def check_integrity(self, used: Sequence[int]) -> None:
        """Every block is free or in exactly one sequence's list. Raises AssertionError."""
        assert sorted([*self._free, *used]) == list(range(self.num_blocks)), "a host block is lost or held twice"
