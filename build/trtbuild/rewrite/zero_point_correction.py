"""Asymmetric INT4 weights -> symmetric ones and a small correction, exactly.

TensorRT takes no zero points and no UINT4. With w = (q - z) s, groups of input channels g and sums over them:

    x w^T = x (q s)^T - sum_g(x) (z s)^T

so the zero points become one extra matmul over K / group inputs (1/128 of the work), and UINT4 codes and zeros both
move down by 8. Zero points that are then all 0 (symmetric GPTQ) need no correction.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnxscript.rewriter import pattern

#: Mark of nodes whose stored operand must not be quantised.
KEEP_FLOAT = "trtdecode.keep_float"

_UINT4_OFFSET = 8


class ZeroPointCorrection(pattern.RewriteRuleClassBase):
    """A Gemm over blocks of INT4 or UINT4 [out, in] with zero points, with or without bias."""

    def __init__(self, name: str, *, with_bias: bool) -> None:
        super().__init__(name)
        self._with_bias = with_bias

    def pattern(self, op, x, codes, scales, zeros, bias):
        weight = op.DequantizeLinear(codes, scales, zeros, _outputs=["weight"])
        inputs = (x, weight, bias) if self._with_bias else (x, weight)
        return op.Gemm(*inputs, transB=1, _outputs=["product"])

    def check(self, context, x, codes, scales, zeros, weight, product, **_):
        result = pattern.MatchResult()
        if not all(value.is_initializer() for value in (codes, scales, zeros)):
            return result.fail("codes, scales or zero points are not stored", codes)
        if codes.dtype not in (ir.DataType.INT4, ir.DataType.UINT4):
            return result.fail("not 4 bits", codes)
        attributes = weight.producer().attributes
        if attributes.get_int("axis", 1) != 1 or not attributes.get_int("block_size", 0):
            return result.fail("not in blocks of input channels", weight)
        gemm = product.producer().attributes
        if gemm.get_float("alpha", 1.0) != 1.0 or gemm.get_float("beta", 1.0) != 1.0 or gemm.get_int("transA", 0):
            return result.fail("the Gemm scales or transposes its input", product)
        if x.shape is None or x.shape.rank() != 2:
            return result.fail("the input is not a matrix", x)
        return result

    def rewrite(self, op, x, codes, scales, zeros, weight, product, bias=None, **_):
        offset = _UINT4_OFFSET if codes.dtype == ir.DataType.UINT4 else 0
        block = weight.producer().attributes["block_size"].as_int()
        signed = op.initializer(_int4(_integers(codes) - offset, f"{codes.name}.signed"))
        dense = op.DequantizeLinear(signed, scales, axis=1, block_size=block, _outputs=[f"{product.name}/weight"])
        inputs = (x, dense) if bias is None else (x, dense, bias)
        shifted = _integers(zeros) - offset
        if not shifted.any():
            return op.Gemm(*inputs, transB=1)
        main = op.Gemm(*inputs, transB=1, _outputs=[f"{product.name}/symmetric"])
        num_groups = shifted.shape[1]
        grouped = op.Reshape(x, op.initializer(_ints([-1, num_groups, block], f"{product.name}/groups")))
        sums = op.ReduceSum(grouped, op.initializer(_ints([2], f"{product.name}/axis")), keepdims=0)
        scaled = (shifted * scales.const_value.numpy()).astype(np.float32)
        stored = op.initializer(ir.Tensor(scaled, name=f"{product.name}/scaled_zero_points"))
        correction = op.Gemm(sums, stored, transB=1, _outputs=[f"{product.name}/correction"])
        correction.producer().metadata_props[KEEP_FLOAT] = "1"
        return op.Sub(main, correction)


def _integers(value: ir.Value) -> npt.NDArray[np.int8]:
    assert value.const_value is not None
    return np.asarray(value.const_value.numpy()).astype(np.int8)


def _int4(array: npt.NDArray[Any], name: str) -> ir.Tensor:
    return ir.Tensor(array.astype(ml_dtypes.int4), dtype=ir.DataType.INT4, name=name)


def _ints(values: list[int], name: str) -> ir.Tensor:
    return ir.Tensor(np.array(values, np.int64), name=name)


def rules() -> list[pattern.RewriteRule]:
    return [ZeroPointCorrection.rule(f"ZeroPoint{bias:d}", with_bias=bias) for bias in (False, True)]
