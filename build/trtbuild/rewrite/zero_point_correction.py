"""Codes with integer zero points -> signed codes and a small correction, exactly (signed_codes.py has the algebra).

TensorRT takes no zero points and no unsigned codes. AWQ's and GPTQ's zero points become one extra matmul over
in / group inputs (1/128 of the work); those in the middle of the range (symmetric GPTQ) vanish.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import pattern

from trtbuild.quantize.signed_codes import signed_codes
from trtbuild.rewrite.coded_gemm import coded_gemm
from trtbuild.rewrite.constants import plain_gemm

_CODES = (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8)


class ZeroPointCorrection(pattern.RewriteRuleClassBase):
    """A Gemm over blocks of stored integers [out, in] with zero points, with or without bias."""

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
        if codes.dtype not in _CODES:
            return result.fail("not 4 or 8 bits", codes)
        attributes = weight.producer().attributes
        if attributes.get_int("axis", 1) != 1 or not attributes.get_int("block_size", 0):
            return result.fail("not in blocks of input channels", weight)
        if not plain_gemm(product.producer()):
            return result.fail("the Gemm scales or transposes its input", product)
        if x.shape is None or x.shape.rank() != 2:
            return result.fail("the input is not a matrix", x)
        return result

    def rewrite(self, op, x, codes, scales, zeros, product, bias=None, **_):
        stored = (value.const_value.numpy() for value in (codes, scales, zeros))
        return coded_gemm(op, x, signed_codes(*stored), bias, product.name)


def rules() -> list[pattern.RewriteRule]:
    return [ZeroPointCorrection.rule(f"ZeroPoint{bias:d}", with_bias=bias) for bias in (False, True)]
