"""Decomposed LayerNorm -> LayerNormalization.

Exporters before opset 17 write out mean, variance, division, scale and bias. Left so in an FP16 graph the variance is
summed in FP16 and overflows from deviations of 256 on; the operator computes it in FP32.
"""

from __future__ import annotations

from onnxscript.rewriter import pattern

from trtbuild.rewrite.constants import is_last_axis, is_vector, scalar_of


class LayerNorm(pattern.RewriteRuleClassBase):
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias over the last axis."""

    def pattern(self, op, x, axes, axes_2, epsilon, scale, bias):
        mean = op.ReduceMean(x, axes, keepdims=1)
        deviation = op.Sub(x, mean)
        squares = pattern.OrValue([op.Mul(deviation, deviation), op.Pow(deviation, 2.0)])
        deviation_norm = op.Sqrt(op.Add(op.ReduceMean(squares, axes_2, keepdims=1), epsilon))
        normalized = pattern.OrValue(
            [op.Div(deviation, deviation_norm), op.Mul(deviation, op.Reciprocal(deviation_norm))]
        )
        return op.Add(op.Mul(normalized, scale), bias)

    def check(self, context, axes, axes_2, epsilon, scale, bias, **_):
        result = pattern.MatchResult()
        if not (is_last_axis(axes) and is_last_axis(axes_2)):
            return result.fail("not over the last axis alone", [axes, axes_2])
        if scalar_of(epsilon) is None:
            return result.fail("epsilon is not one constant", epsilon)
        if not (is_vector(scale) and is_vector(bias)):
            return result.fail("scale or bias is not a stored vector", [scale, bias])
        return result

    def rewrite(self, op, x, epsilon, scale, bias, **_):
        return op.LayerNormalization(x, scale, bias, axis=-1, epsilon=scalar_of(epsilon))


def rules() -> list[pattern.RewriteRule]:
    return [LayerNorm.rule()]
