"""Decomposed exact GELU -> Gelu: x / 2 * (1 + erf(x / sqrt(2))), in the orders that exporters write."""

from __future__ import annotations

import math

from onnxscript.rewriter import pattern

from trtbuild.rewrite.constants import is_scalar


class GeluErf(pattern.RewriteRuleClassBase):
    """PyTorch's decomposition: (x * (1 + erf(x / sqrt 2))) * 0.5, or with the half taken first."""

    def __init__(self, name: str, *, half_first: bool) -> None:
        super().__init__(name)
        self._half_first = half_first

    def pattern(self, op, x, root_two, one, half):
        inner = op.Add(op.Erf(pattern.OrValue([op.Div(x, root_two), op.Mul(x, root_two)], tag_var="form")), one)
        return op.Mul(op.Mul(x, half), inner) if self._half_first else op.Mul(op.Mul(x, inner), half)

    def check(self, context, root_two, one, half, form, **_):
        result = pattern.MatchResult()
        wanted = math.sqrt(2) if form == 0 else math.sqrt(0.5)
        if not is_scalar(root_two, wanted):
            return result.fail(f"the argument of erf is not x * {wanted:.4f} or its inverse", root_two)
        if not (is_scalar(one, 1.0) and is_scalar(half, 0.5)):
            return result.fail("the constants are not 1 and 1/2", [one, half])
        return result

    def rewrite(self, op, x, **_):
        return op.Gelu(x)


def rules() -> list[pattern.RewriteRule]:
    return [GeluErf.rule(f"GeluErf{first:d}", half_first=first) for first in (False, True)]
