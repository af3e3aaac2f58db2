"""One layer's KV pages on the device, and how a value is quantised into them.

Layout of keys and of values: [num_blocks, num_kv_heads, block_size, head_dim]. One (block, head) tile is contiguous
(2 KiB for 16 slots of 64 fp16 values), which is what one attention program reads, so every load is wide and coalesced
whatever block the table names; a head of a block can be moved as one copy. int8 and fp8 pages have one f32 scale for
each (block, head, slot), written with the token: a block is append-only and never has to be quantised again, no
calibration is needed, and the dequantisation is one multiply of a score (keys) or a weight (values).

Block 0 is the null block of `executor/base.py`: padding rows of a captured batch write there, and nobody reads it
(entries of a table that a window has passed point to it, and are masked).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

#: `kv_cache_precision` -> what a page stores.
PAGE_DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
#: The largest magnitude of a quantised value: one scale is absmax / limit.
QUANTISED_LIMITS = {"int8": 127.0, "fp8": 448.0}
SCALE_BYTES = 4
NULL_BLOCK = 0
#: Rows with a smaller scale read back as zeros: the reciprocal of a subnormal scale would overflow.
SMALLEST_SCALE = 1e-30


class Memory(Protocol):
    """Gives zeroed device memory (`executor/cuda_device.py`)."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor: ...


@dataclass(frozen=True)
class KvPages:
    """K and V of one layer. Tensors belong to the executor's pool."""

    key: torch.Tensor  # [num_blocks, num_kv_heads, block_size, head_dim], a dtype of PAGE_DTYPES
    value: torch.Tensor  # same shape and dtype
    key_scale: torch.Tensor | None = None  # f32 [num_blocks, num_kv_heads, block_size], quantised pages only
    value_scale: torch.Tensor | None = None

    @property
    def num_kv_heads(self) -> int:
        return int(self.key.shape[1])

    @property
    def block_size(self) -> int:
        return int(self.key.shape[2])

    @property
    def head_dim(self) -> int:
        return int(self.key.shape[3])

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of them; the first dimension of each is the block."""
        scales = () if self.key_scale is None or self.value_scale is None else (self.key_scale, self.value_scale)
        return (self.key, self.value, *scales)

    @classmethod
    def allocate(
        cls, precision: str, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int, memory: Memory
    ) -> KvPages:
        """Zeroed pages of one layer (what is masked is still multiplied by 0, so it must be finite)."""
        shape = (num_blocks, num_kv_heads, block_size)
        key, value = (memory.allocate((*shape, head_dim), PAGE_DTYPES[precision]) for _ in range(2))
        if precision not in QUANTISED_LIMITS:
            return cls(key, value)
        key_scale, value_scale = (memory.allocate(shape, torch.float32) for _ in range(2))
        return cls(key, value, key_scale, value_scale)

    @property
    def quantisation(self) -> str:
        """ "none", "int8" or "fp8"."""
        if self.key.dtype == torch.int8:
            return "int8"
        return "fp8" if self.key.dtype == torch.float8_e4m3fn else "none"


class TorchMemory:
    """Memory straight from torch, for tests, measurements and meta tensors."""

    def __init__(self, device: str) -> None:
        self._device = device

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype, device=self._device)


def allocate_pages(
    precision: str, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int, device: str
) -> KvPages:
    """`KvPages.allocate` on a torch device."""
    return KvPages.allocate(precision, num_blocks, num_kv_heads, block_size, head_dim, TorchMemory(device))


def page_bytes(precision: str, num_kv_heads: int, block_size: int, head_dim: int) -> int:
    """Device bytes of one block of one layer, K and V and their scales."""
    values = num_kv_heads * block_size * head_dim * int(PAGE_DTYPES[precision].itemsize)
    scales = num_kv_heads * block_size * SCALE_BYTES if precision in QUANTISED_LIMITS else 0
    return 2 * (values + scales)


def quantise_reference(values: torch.Tensor, quantisation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What kv_write stores: codes and f32 scales of `values` [..., head_dim], one scale a row.

    A row of zeros reads back as exact zeros (no 0/0). int8 rounds halves up (floor(x + 0.5)), as the
    kernel does; fp8 is E4M3, rounded to nearest even, within +-448.
    """
    limit = QUANTISED_LIMITS[quantisation]
    wide = values.to(torch.float32)
    scale = wide.abs().amax(dim=-1) / limit
    usable = scale > SMALLEST_SCALE
    inverse = torch.where(usable, 1.0 / torch.where(usable, scale, 1.0), 0.0)
    scaled = (wide * inverse[..., None]).clamp(-limit, limit)
    if quantisation == "int8":
        return torch.floor(scaled + 0.5).to(torch.int8), scale
    return scaled.to(torch.float8_e4m3fn), scale


def dequantise(codes: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """f32 values of a page tensor of any precision."""
    wide = codes.to(torch.float32)
    return wide if scale is None else wide * scale[..., None]
