"""What the cache manager says about sequences: their blocks, the prefix they need not compute, counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SequenceBlocks:
    """A running request's place in the block tables (`request.blocks`). Changed by the manager only."""

    row: int  # of KVCacheManager.block_tables
    num_blocks: int = 0  # table entries in use
    num_slots: int = 0  # num_blocks * block_size: tokens that fit before the next allocation
    num_published: int = 0  # leading full blocks that are shared or were offered to the prefix cache
    num_freed: int = 0  # leading entries that point to the null block
    publish_at: int = 0  # computed tokens at which the next block is full


@dataclass(frozen=True, slots=True)
class SwappedBlocks:
    """A preempted request's K/V in the host pool (`request.swapped`). Changed by the manager only."""

    num_tokens: int  # whose K/V they are
    num_freed: int  # leading table entries that were the null block
    host_ids: tuple[int, ...]  # one for each table entry after those


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a request need not compute, found by `find_prefix`. Nothing is held until `start` takes it."""

    block_ids: tuple[int, ...] = ()  # full blocks to share
    num_tokens: int = 0  # tokens already in the cache
    copy_from: int | None = None  # partial block of a forked parent: the first new block becomes its copy
    host_ids: tuple[int, ...] = ()  # what the first new blocks get from the host pool


NO_PREFIX = Prefix()


@dataclass(slots=True)
class CacheStats:
    """Counted since start; tokens."""

    num_prefix_queries: int = 0  # tokens looked up
    num_prefix_hits: int = 0  # tokens found


@dataclass(frozen=True, slots=True)
class Waste:
    """Slots allocated to running sequences, and how many of them hold no token."""

    num_slots: int
    num_unused: int
    num_sequences: int

    @property
    def ratio(self) -> float:
        return self.num_unused / self.num_slots if self.num_slots else 0.0
