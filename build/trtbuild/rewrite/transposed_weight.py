"""MatMul(x, Transpose(W)) -> MatMul(x, W^T stored), so that quantisation sees a stored weight."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import pattern


class TransposedWeight(pattern.RewriteRuleClassBase):
    """A stored matrix that is transposed in the graph."""

    def pattern(self, op, x, weight):
        return op.MatMul(x, op.Transpose(weight, _outputs=["turned"]))

    def check(self, context, weight, **_):
        result = pattern.MatchResult()
        if not weight.is_initializer() or weight.shape.rank() != 2:
            return result.fail("not a stored matrix", weight)
        return result

    def rewrite(self, op, x, weight, **_):
        array = np.ascontiguousarray(weight.const_value.numpy().T)
        return op.MatMul(x, op.initializer(ir.Tensor(array, name=f"{weight.name}.transposed")))


def rules() -> list[pattern.RewriteRule]:
    return [TransposedWeight.rule()]
