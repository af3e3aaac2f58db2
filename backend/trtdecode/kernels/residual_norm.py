"""Residual add fused with LayerNorm or RMSNorm: one read of each input, one write of each output.

Sources of the formulas: Ba, Kiros and Hinton 2016, "Layer Normalization"; Zhang and Sennrich 2019, "Root Mean Square
Layer Normalization". LayerNorm's variance is taken from differences to the mean (two passes over registers, not
E[x^2] - E[x]^2, which cancels when the mean is large). The sum is rounded to the residual's dtype before it is
normalised, because that rounded sum is what the next residual add reads.
"""

from __future__ import annotations

import torch

from trtdecode.kernels.language import jit, tl
from trtdecode.kernels.launch import Kernel, Launcher
from trtdecode.kernels.rows import check_rows, row_block


def residual_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch: (normalised, new residual)."""
    total = (x.float() + residual.float()).to(x.dtype)
    wide = total.float()
    if bias is None:
        inverse = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
        return (wide * inverse * weight.float()).to(x.dtype), total
    normalised = torch.nn.functional.layer_norm(wide, weight.shape, weight.float(), bias.float(), epsilon)
    return normalised.to(x.dtype), total


@jit
def _add_residual(x, residual, row, column, mask, width, x_row_stride):
    """Adds x's row to the residual's, in place; the rounded sum in f32."""
    new = tl.load(x + row * x_row_stride + column, mask=mask, other=0.0).to(tl.float32)
    old = tl.load(residual + row * width + column, mask=mask, other=0.0).to(tl.float32)
    total = (new + old).to(residual.dtype.element_ty)
    tl.store(residual + row * width + column, total, mask=mask)
    return total.to(tl.float32)


@jit(do_not_specialize=["width"])
def _residual_rmsnorm_kernel(x, residual, weight, normalised, width, x_row_stride, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < width
    wide = _add_residual(x, residual, row, column, mask, width, x_row_stride)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / width + epsilon)
    gain = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    result = wide * inverse * gain
    tl.store(normalised + row * width + column, result.to(normalised.dtype.element_ty), mask=mask)


@jit(do_not_specialize=["width"])
def _residual_layernorm_kernel(
    x, residual, weight, bias, normalised, width, x_row_stride, epsilon, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < width
    wide = _add_residual(x, residual, row, column, mask, width, x_row_stride)
    centred = tl.where(mask, wide - tl.sum(wide, axis=0) / width, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + epsilon)
    gain = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    result = centred * inverse * gain + shift
    tl.store(normalised + row * width + column, result.to(normalised.dtype.element_ty), mask=mask)


#: By number of warps: enough for 8 to 16 values a thread (rows.row_block).
RESIDUAL_RMSNORM, RESIDUAL_LAYERNORM = (
    {warps: Kernel(name, kernel, num_warps=warps, num_stages=1) for warps in (1, 4, 8, 16)}
    for name, kernel in (
        ("residual_rmsnorm", _residual_rmsnorm_kernel),
        ("residual_layernorm", _residual_layernorm_kernel),
    )
)


def residual_norm(
    launcher: Launcher,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    normalised: torch.Tensor,
) -> torch.Tensor:
    """residual += x; then RMSNorm, normalised = residual / rms(residual) * weight, or, with a bias, LayerNorm,
    normalised = (residual - mean) / std * weight + bias.

    Args:
        x: [T, width]; rows may be slices of a wider tensor.
        residual: [T, width] contiguous, x's dtype, updated in place.
        weight, bias: [width], any float dtype.
        normalised: [T, width] contiguous, x's dtype, written in full.

    Returns:
        normalised.
    """
    vectors = (weight,) if bias is None else (weight, bias)
    rows, width = check_rows(x, residual, normalised, vectors=vectors)
    block, warps = row_block(width)
    kernels = RESIDUAL_RMSNORM if bias is None else RESIDUAL_LAYERNORM
    arguments = (x, residual, *vectors, normalised, width, x.stride(0), float(epsilon))
    launcher(kernels[warps], (rows, 1, 1), arguments, {"BLOCK": block})
    return normalised
