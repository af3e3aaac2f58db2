"""Decomposed RMSNorm -> RMSNormalization.

Llama exports write x * rsqrt(mean(x^2) + epsilon) * scale, with or without casts to FP32 around it. Left so in an FP16
graph, x^2 overflows from |x| = 256 on; the operator computes in FP32.
"""

from __future__ import annotations

from onnxscript.rewriter import pattern

from trtbuild.rewrite.constants import is_last_axis, is_vector, scalar_of


class RmsNorm(pattern.RewriteRuleClassBase):
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis, scale on either side.

    Args:
        scale_first: whether the scale is the product's left side.
        casts: whether x is cast before and the normalised value after.
    """

    def __init__(self, name: str, *, scale_first: bool, casts: bool) -> None:
        super().__init__(name)
        self._scale_first = scale_first
        self._casts = casts

    def pattern(self, op, x, axes, epsilon, scale):
        inner = op.Cast(x, _outputs=["inner"]) if self._casts else x
        squares = pattern.OrValue([op.Mul(inner, inner), op.Pow(inner, 2.0)])
        root = op.Sqrt(op.Add(op.ReduceMean(squares, axes, keepdims=1), epsilon))
        normalized = pattern.OrValue([op.Div(inner, root), op.Mul(inner, op.Reciprocal(root))])
        if self._casts:
            normalized = op.Cast(normalized, _outputs=["outer"])
        return op.Mul(scale, normalized) if self._scale_first else op.Mul(normalized, scale)

    def check(self, context, x, axes, epsilon, scale, **_):
        result = pattern.MatchResult()
        if not is_last_axis(axes):
            return result.fail("not over the last axis alone", axes)
        if scalar_of(epsilon) is None:
            return result.fail("epsilon is not one constant", epsilon)
        if not is_vector(scale):
            return result.fail("scale is not a stored vector", scale)
        if x.dtype is not None and scale.dtype != x.dtype:
            return result.fail("the cast changes the type of the result", [x, scale])
        return result

    def rewrite(self, op, x, epsilon, scale, **_):
        return op.RMSNormalization(x, scale, axis=-1, epsilon=scalar_of(epsilon))


def rules() -> list[pattern.RewriteRule]:
    return [
        RmsNorm.rule(f"RmsNorm{first:d}{casts:d}", scale_first=first, casts=casts)
        for casts in (True, False)
        for first in (True, False)
    ]
