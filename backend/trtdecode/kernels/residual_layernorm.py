"""Residual add fused with LayerNorm: one read of each input, one write of each output.

Source of the formula: Ba, Kiros and Hinton 2016, "Layer Normalization". The variance is taken from differences to the
mean (two passes over registers, not E[x^2] - E[x]^2, which cancels when the mean is large). The sum is rounded to the
residual's dtype before it is normalised, because that rounded sum is what the next residual add reads.
"""

from __future__ import annotations

import torch

from trtdecode.kernels.language import jit, tl
from trtdecode.kernels.launch import Kernel, Launcher
from trtdecode.kernels.rows import check_rows, row_block


def residual_layernorm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch: (normalised, new residual)."""
    total = (x.float() + residual.float()).to(x.dtype)
    wide = torch.nn.functional.layer_norm(total.float(), weight.shape, weight.float(), bias.float(), epsilon)
    return wide.to(x.dtype), total


@jit(do_not_specialize=["width"])
def _residual_layernorm_kernel(
    x, residual, weight, bias, normalised, width, x_row_stride, epsilon, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < width
    new = tl.load(x + row * x_row_stride + column, mask=mask, other=0.0).to(tl.float32)
    old = tl.load(residual + row * width + column, mask=mask, other=0.0).to(tl.float32)
    total = (new + old).to(residual.dtype.element_ty)
    tl.store(residual + row * width + column, total, mask=mask)
    wide = total.to(tl.float32)
    centred = tl.where(mask, wide - tl.sum(wide, axis=0) / width, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + epsilon)
    gain = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    result = centred * inverse * gain + shift
    tl.store(normalised + row * width + column, result.to(normalised.dtype.element_ty), mask=mask)


RESIDUAL_LAYERNORM = {
    warps: Kernel("residual_layernorm", _residual_layernorm_kernel, num_warps=warps, num_stages=1)
    for warps in (1, 4, 8, 16)
}


def residual_layernorm(
    launcher: Launcher,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
    normalised: torch.Tensor,
) -> torch.Tensor:
    """residual += x; normalised = (residual - mean) / std * weight + bias.

    Args:
        x: [T, width]; rows may be slices of a wider tensor.
        residual: [T, width] contiguous, x's dtype, updated in place.
        weight, bias: [width], any float dtype.
        normalised: [T, width] contiguous, x's dtype, written in full.

    Returns:
        normalised.
    """
    rows, width = check_rows(x, residual, normalised, vectors=(weight, bias))
    block, warps = row_block(width)
    arguments = (x, residual, weight, bias, normalised, width, x.stride(0), float(epsilon))
    launcher(RESIDUAL_LAYERNORM[warps], (rows, 1, 1), arguments, {"BLOCK": block})
    return normalised
