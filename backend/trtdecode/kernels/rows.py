"""What the row-wise kernels share: one program holds one whole row in registers."""

from __future__ import annotations

import torch

from trtdecode.kernels.launch import next_power_of_2

#: 16 warps with 32 values a thread; a wider row would spill. The widest hidden size in use is 16384.
WIDEST_ROW = 16384


def check_rows(x: torch.Tensor, *contiguous: torch.Tensor, vectors: tuple[torch.Tensor, ...]) -> tuple[int, int]:
    """Checks the tensors of a row-wise kernel and gives (rows, width).

    `x` may have strided rows; `contiguous` tensors have x's shape and dtype; `vectors` are [width].
    """
    rows, width = x.shape
    assert 0 < width <= WIDEST_ROW, f"rows of {width} values; the kernel holds 1 to {WIDEST_ROW}"
    assert x.stride(1) == 1, "a row's values must be contiguous"
    for tensor in contiguous:
        assert tensor.shape == x.shape and tensor.dtype == x.dtype and tensor.is_contiguous()
    for vector in vectors:
        assert vector.shape == (width,) and vector.is_contiguous()
    return rows, width


def row_block(width: int) -> tuple[int, int]:
    """(columns of the block, warps) for a row: about 8 to 32 values a thread."""
    block = next_power_of_2(width)
    if block <= 256:
        return block, 1
    if block <= 2048:
        return block, 4
    return block, 8 if block <= 8192 else 16
