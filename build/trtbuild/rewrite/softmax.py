"""Decomposed softmax -> Softmax: exp(x - max) / sum(exp(x - max)) over the last axis (`fused_linear_softmax`)."""

from __future__ import annotations

from onnxscript.rewriter import pattern

from trtbuild.rewrite.constants import is_last_axis


class SoftmaxFromParts(pattern.RewriteRuleClassBase):
    """The numerically safe form; without the maximum taken off first it is another function in FP16."""

    def pattern(self, op, x, axes, axes_2):
        weights = op.Exp(op.Sub(x, op.ReduceMax(x, axes, keepdims=1)))
        return op.Div(weights, op.ReduceSum(weights, axes_2, keepdims=1))

    def check(self, context, axes, axes_2, **_):
        result = pattern.MatchResult()
        if not (is_last_axis(axes) and is_last_axis(axes_2)):
            return result.fail("not over the last axis alone", [axes, axes_2])
        return result

    def rewrite(self, op, x, **_):
        return op.Softmax(x, axis=-1)


def rules() -> list[pattern.RewriteRule]:
    return [SoftmaxFromParts.rule()]
