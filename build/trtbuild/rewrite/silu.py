"""x * sigmoid(x) -> Swish, so that gate and up are seen as the named pattern that they are."""

from __future__ import annotations

from onnxscript.rewriter import pattern


class Silu(pattern.RewriteRuleClassBase):
    """SiLU as two operators, in either order."""

    def __init__(self, name: str, *, sigmoid_first: bool) -> None:
        super().__init__(name)
        self._sigmoid_first = sigmoid_first

    def pattern(self, op, x):
        gate = op.Sigmoid(x)
        return op.Mul(gate, x) if self._sigmoid_first else op.Mul(x, gate)

    def rewrite(self, op, x, **_):
        return op.Swish(x)


def rules() -> list[pattern.RewriteRule]:
    return [Silu.rule(f"Silu{first:d}", sigmoid_first=first) for first in (False, True)]
