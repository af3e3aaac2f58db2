"""(Cast(codes) - zeros) * scales, with zero points that are no integers -> signed codes and a small correction.

What graphs say for GGUF's types with a minimum (Q4_1, Q5_1, Q4_K, Q5_K), since DequantizeLinear's zero points are
integers; and neither these nor unsigned codes can TensorRT read. Exact: signed_codes.py has the algebra.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import pattern

from trtbuild.quantize.signed_codes import signed_codes
from trtbuild.rewrite.coded_gemm import coded_gemm
from trtbuild.rewrite.constants import plain_gemm


class FloatZeroPoints(pattern.RewriteRuleClassBase):
    """A Gemm over stored UINT4 or UINT8 [out, groups, group size] with scales and zero points [out, groups, 1]."""

    def __init__(self, name: str, *, with_bias: bool) -> None:
        super().__init__(name)
        self._with_bias = with_bias

    def pattern(self, op, x, codes, scales, zeros, shape, bias):
        weight = op.Reshape(op.Mul(op.Sub(op.Cast(codes), zeros), scales), shape, _outputs=["weight"])
        inputs = (x, weight, bias) if self._with_bias else (x, weight)
        return op.Gemm(*inputs, transB=1, _outputs=["product"])

    def check(self, context, x, codes, scales, zeros, shape, product, **_):
        result = pattern.MatchResult()
        if not all(value.is_initializer() for value in (codes, scales, zeros, shape)):
            return result.fail("codes, scales or zero points are not stored", codes)
        if codes.dtype not in (ir.DataType.UINT4, ir.DataType.UINT8):
            return result.fail("not unsigned codes", codes)
        if codes.shape.rank() != 3 or not list(scales.shape) == list(zeros.shape) == [*codes.shape[:2], 1]:
            return result.fail("not a scale and a zero point a group", scales)
        rows, groups, size = codes.shape
        if list(shape.const_value.numpy()) not in ([-1, groups * size], [rows, -1], [rows, groups * size]):
            return result.fail("not the groups of a row side by side", shape)
        if not plain_gemm(product.producer()):
            return result.fail("the Gemm scales or transposes its input", product)
        return result

    def rewrite(self, op, x, codes, scales, zeros, product, bias=None, **_):
        integers = codes.const_value.numpy()
        signed = signed_codes(
            integers.reshape(len(integers), -1),
            scales.const_value.numpy()[:, :, 0],
            zeros.const_value.numpy()[:, :, 0],
        )
        return coded_gemm(op, x, signed, bias, product.name)


def rules() -> list[pattern.RewriteRule]:
    return [FloatZeroPoints.rule(f"FloatZeroPoints{bias:d}", with_bias=bias) for bias in (False, True)]
