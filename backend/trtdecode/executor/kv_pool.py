"""Sizing of an executor's KV block pool."""

from __future__ import annotations

from trtdecode.errors import ConfigError


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
