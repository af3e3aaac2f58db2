"""Stored codes that TensorRT builds, but unfolds to floats in a kernel of its own in every step -> fused ones, exactly.

INT8 in blocks becomes two halves of INT4 (as many bytes), INT8 in one block a row gets a scale an output channel, INT4
in one block a row gets two, and INT4 of an odd number of rows gets one row more (signed_codes.py, coded_gemm.py). For
INT4 engines alone: older GPUs have no INT4.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import pattern

from trtbuild.quantize.signed_codes import signed_codes
from trtbuild.rewrite.coded_gemm import NUM_COPIES, coded_gemm
from trtbuild.rewrite.constants import plain_gemm


class UnfusedBlocks(pattern.RewriteRuleClassBase):
    """A Gemm over stored INT8 or INT4 [out, in] in blocks of input channels, with or without bias."""

    def __init__(self, name: str, *, with_bias: bool) -> None:
        super().__init__(name)
        self._with_bias = with_bias

    def pattern(self, op, x, codes, scales, bias):
        weight = op.DequantizeLinear(codes, scales, _outputs=["weight"])
        inputs = (x, weight, bias) if self._with_bias else (x, weight)
        return op.Gemm(*inputs, transB=1, _outputs=["product"])

    def check(self, context, x, codes, scales, weight, product, **_):
        result = pattern.MatchResult()
        if not codes.is_initializer() or not scales.is_initializer():
            return result.fail("codes or scales are not stored", codes)
        attributes = weight.producer().attributes
        if attributes.get_int("axis", 1) != 1 or not attributes.get_int("block_size", 0):
            return result.fail("not in blocks of input channels", weight)
        rows, columns = codes.shape
        is_unfused_int4 = rows % 2 == 1 or (scales.shape[1] == 1 and columns % 2 == 0)
        if codes.dtype != ir.DataType.INT8 and not (codes.dtype == ir.DataType.INT4 and is_unfused_int4):
            return result.fail("fused as it is", codes)
        if NUM_COPIES in product.producer().metadata_props:
            return result.fail("made by a rule: it would match without end", product)
        if not plain_gemm(product.producer()):
            return result.fail("the Gemm scales or transposes its input", product)
        return result

    def rewrite(self, op, x, codes, scales, product, bias=None, **_):
        signed = signed_codes(codes.const_value.numpy(), scales.const_value.numpy(), None)
        return coded_gemm(op, x, signed, bias, product.name)


def rules() -> list[pattern.RewriteRule]:
    return [UnfusedBlocks.rule(f"UnfusedBlocks{bias:d}", with_bias=bias) for bias in (False, True)]
