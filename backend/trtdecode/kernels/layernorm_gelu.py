"""LayerNorm followed by GELU in one kernel: the measure for what TensorRT's compiler makes of the same pair.

GELU is Hendrycks and Gimpel 2016: exact, x * Phi(x) through erf, or their tanh approximation. The tanh is written
through an exponential whose argument is never positive, so that nothing overflows.
"""

from __future__ import annotations

import torch

from trtdecode.kernels.language import jit, tl
from trtdecode.kernels.launch import Kernel, Launcher
from trtdecode.kernels.rows import check_rows, row_block

APPROXIMATIONS = ("none", "tanh")  # the names of ONNX Gelu's attribute


def layernorm_gelu_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, approximate: str
) -> torch.Tensor:
    """The same in torch, through f32."""
    wide = torch.nn.functional.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), epsilon)
    return torch.nn.functional.gelu(wide, approximate=approximate).to(x.dtype)


@jit(do_not_specialize=["width"])
def _layernorm_gelu_kernel(
    x, weight, bias, output, width, x_row_stride, epsilon, BLOCK: tl.constexpr, APPROXIMATE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < width
    wide = tl.load(x + row * x_row_stride + column, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, wide - tl.sum(wide, axis=0) / width, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + epsilon)
    gain = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    y = centred * inverse * gain + shift
    if APPROXIMATE == "tanh":
        inner = 0.7978845608028654 * (y + 0.044715 * y * y * y)  # sqrt(2 / pi)
        decayed = tl.exp(-2.0 * tl.abs(inner))
        tanh = (1.0 - decayed) / (1.0 + decayed)
        result = 0.5 * y * (1.0 + tl.where(inner < 0, -tanh, tanh))
    else:
        result = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))  # sqrt(1 / 2)
    tl.store(output + row * width + column, result.to(output.dtype.element_ty), mask=mask)


LAYERNORM_GELU = {
    warps: Kernel("layernorm_gelu", _layernorm_gelu_kernel, num_warps=warps, num_stages=1) for warps in (1, 4, 8, 16)
}


def layernorm_gelu(
    launcher: Launcher,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
    approximate: str,
    output: torch.Tensor,
) -> torch.Tensor:
    """output = gelu((x - mean) / std * weight + bias).

    Args:
        x: [T, width]; rows may be slices of a wider tensor.
        weight, bias: [width], any float dtype.
        approximate: one of APPROXIMATIONS.
        output: [T, width] contiguous, x's dtype, written in full.

    Returns:
        output.
    """
    assert approximate in APPROXIMATIONS, f"approximate must be one of {APPROXIMATIONS}, got {approximate!r}"
    rows, width = check_rows(x, output, vectors=(weight, bias))
    block, warps = row_block(width)
    arguments = (x, weight, bias, output, width, x.stride(0), float(epsilon))
    launcher(LAYERNORM_GELU[warps], (rows, 1, 1), arguments, {"BLOCK": block, "APPROXIMATE": approximate})
    return output
