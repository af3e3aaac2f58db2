"""Cast(int8 weight) * scale -> DequantizeLinear.

A weight-only checkpoint exported as arithmetic: TensorRT refuses an INT8 constant that is not read by a
DequantizeLinear, and with one it runs the matmul on INT8 weights.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import pattern


class CastScaledWeight(pattern.RewriteRuleClassBase):
    """INT8 codes [in, out] times a scale a column, or [out, in] times a column vector of scales [out, 1]."""

    def pattern(self, op, codes, scale):
        return op.Mul(op.Cast(codes), scale)

    def check(self, context, codes, scale, **_):
        result = pattern.MatchResult()
        if not codes.is_initializer() or codes.dtype != ir.DataType.INT8 or codes.shape.rank() != 2:
            return result.fail("not a stored INT8 matrix", codes)
        if not scale.is_initializer() or _axis(codes, scale) is None:
            return result.fail("not one stored scale a row or a column", scale)
        return result

    def rewrite(self, op, codes, scale, **_):
        array = scale.const_value.numpy().reshape(-1)
        flat = op.initializer(ir.Tensor(array, name=f"{scale.name}.flat"))
        return op.DequantizeLinear(codes, flat, axis=_axis(codes, scale))


def _axis(codes: ir.Value, scale: ir.Value) -> int | None:
    """The axis of `codes` that the scale numbers, by NumPy's broadcasting; None where it is neither."""
    assert codes.shape is not None and scale.shape is not None
    rows, columns = codes.shape
    shape = list(scale.shape)
    if shape == [rows, 1]:
        return 0
    return 1 if shape in ([columns], [1, columns]) else None


def rules() -> list[pattern.RewriteRule]:
    return [CastScaledWeight.rule()]
