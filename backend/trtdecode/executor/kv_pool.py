"""Sizing of an executor's KV block pool, and the host pool beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trtdecode.errors import ConfigError
from trtdecode.executor.base import Batch


def blocks_in_budget(kv_cache_bytes: int, block_bytes: int) -> int:
    """Blocks that fit; `block_bytes` is K and V of one block over all layers.

    Raises:
        ConfigError: not even one fits.
    """
    num_blocks = kv_cache_bytes // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"kv_cache_bytes: {kv_cache_bytes} is less than one block of {block_bytes} bytes over all layers; raise it"
        )
    return num_blocks


def host_blocks_in_budget(swap_space_bytes: int, block_bytes: int) -> int:
    """Blocks of the host pool; 0 bytes: none.

    Raises:
        ConfigError: not 0, but less than one block.
    """
    if 0 < swap_space_bytes < block_bytes:
        raise ConfigError(
            f"swap_space_bytes: {swap_space_bytes} is less than one block of {block_bytes} bytes over all layers; "
            "raise it, or leave it out to recompute preempted requests"
        )
    return swap_space_bytes // block_bytes


def _assign(target: Any, source: Any) -> None:
    target[...] = source


class HostBlocks:
    """Host memory for blocks that were swapped out, one array beside each cache.

    Args:
        caches, hosts: arrays or tensors, blocks along the first axis; hosts[i] is like caches[i] but for its length.
        copy: (target, source) of one block; called in order.
    """

    def __init__(self, caches: Sequence[Any], hosts: Sequence[Any], copy: Callable[[Any, Any], None] = _assign) -> None:
        self._pairs = list(zip(caches, hosts, strict=True))
        self._copy = copy

    def swap(self, batch: Batch) -> None:
        """Makes the batch's swaps: out first, then in. A block of one may be a block of the other."""
        for block_id, host_id in batch.swap_outs:
            for cache, host in self._pairs:
                self._copy(host[host_id], cache[block_id])
        for host_id, block_id in batch.swap_ins:
            for cache, host in self._pairs:
                self._copy(cache[block_id], host[host_id])
