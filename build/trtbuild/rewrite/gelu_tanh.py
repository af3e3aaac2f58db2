"""Decomposed tanh GELU -> Gelu(approximate="tanh"): x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""

from __future__ import annotations

import math

from onnxscript.rewriter import pattern

from trtbuild.rewrite.constants import is_scalar


class GeluTanh(pattern.RewriteRuleClassBase):
    """GPT-2's decomposition, with the cube as a power or as products."""

    def pattern(self, op, x, cubic, outer, one, half, three):
        cube = pattern.OrValue([op.Pow(x, three), op.Mul(x, op.Mul(x, x)), op.Mul(op.Mul(x, x), x)])
        polynomial = op.Add(x, op.Mul(cube, cubic))
        inner = op.Add(op.Tanh(op.Mul(polynomial, outer)), one)
        return op.Mul(op.Mul(x, half), inner)

    def check(self, context, cubic, outer, one, half, three=None, **_):
        result = pattern.MatchResult()
        if three is not None and not is_scalar(three, 3.0):
            return result.fail("the power is not 3", three)
        if not (is_scalar(cubic, 0.044715) and is_scalar(outer, math.sqrt(2 / math.pi))):
            return result.fail("the polynomial is not GELU's", [cubic, outer])
        if not (is_scalar(one, 1.0) and is_scalar(half, 0.5)):
            return result.fail("the constants are not 1 and 1/2", [one, half])
        return result

    def rewrite(self, op, x, **_):
        return op.Gelu(x, approximate="tanh")


def rules() -> list[pattern.RewriteRule]:
    return [GeluTanh.rule()]
