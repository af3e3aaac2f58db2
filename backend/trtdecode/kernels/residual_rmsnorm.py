"""Residual add fused with RMSNorm: one read of each input, one write of each output.

Source of the formula: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization". The sum is rounded to the
residual's dtype before it is normalised, because that rounded sum is what the next residual add reads.
"""

from __future__ import annotations

import torch

from trtdecode.kernels.language import jit, tl
from trtdecode.kernels.launch import Kernel, Launcher
from trtdecode.kernels.rows import check_rows, row_block


def residual_rmsnorm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch: (normalised, new residual)."""
    total = (x.float() + residual.float()).to(x.dtype)
    wide = total.float()
    inverse = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
    return (wide * inverse * weight.float()).to(x.dtype), total


@jit(do_not_specialize=["width"])
def _residual_rmsnorm_kernel(x, residual, weight, normalised, width, x_row_stride, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < width
    new = tl.load(x + row * x_row_stride + column, mask=mask, other=0.0).to(tl.float32)
    old = tl.load(residual + row * width + column, mask=mask, other=0.0).to(tl.float32)
    total = (new + old).to(residual.dtype.element_ty)
    tl.store(residual + row * width + column, total, mask=mask)
    wide = total.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / width + epsilon)
    gain = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    result = wide * inverse * gain
    tl.store(normalised + row * width + column, result.to(normalised.dtype.element_ty), mask=mask)


#: By block of columns: enough warps for 8 to 16 values a thread.
RESIDUAL_RMSNORM = {
    warps: Kernel("residual_rmsnorm", _residual_rmsnorm_kernel, num_warps=warps, num_stages=1)
    for warps in (1, 4, 8, 16)
}


def residual_rmsnorm(
    launcher: Launcher,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    normalised: torch.Tensor,
) -> torch.Tensor:
    """residual += x; normalised = residual / rms(residual) * weight.

    Args:
        x: [T, width]; rows may be slices of a wider tensor.
        residual: [T, width] contiguous, x's dtype, updated in place.
        weight: [width], any float dtype.
        normalised: [T, width] contiguous, x's dtype, written in full.

    Returns:
        normalised.
    """
    rows, width = check_rows(x, residual, normalised, vectors=(weight,))
    block, warps = row_block(width)
    arguments = (x, residual, weight, normalised, width, x.stride(0), float(epsilon))
    launcher(RESIDUAL_RMSNORM[warps], (rows, 1, 1), arguments, {"BLOCK": block})
    return normalised
