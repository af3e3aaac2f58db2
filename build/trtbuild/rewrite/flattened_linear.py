"""Reshape -> Gemm -> Reshape -> MatMul + Add.

PyTorch's exporter flattens [batch, tokens, width] around a Gemm. The reshape behind it keeps the compiler from taking
an activation into the matmul: two kernels where the rewritten graph has one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import pattern

from trtbuild.rewrite.constants import is_vector


class FlattenedLinear(pattern.RewriteRuleClassBase):
    """A Gemm with bias on flattened rows; the second reshape must undo the first."""

    def pattern(self, op, x, flat_shape, weight, bias, shape):
        flat = op.Reshape(x, flat_shape)
        return op.Reshape(op.Gemm(flat, weight, bias, _outputs=["rows"]), shape, _outputs=["unflattened"])

    def check(self, context, x, weight, bias, shape, rows, unflattened, **_):
        result = pattern.MatchResult()
        gemm = rows.producer()
        plain = gemm.attributes.get_float("alpha", 1.0) == gemm.attributes.get_float("beta", 1.0) == 1.0
        if not plain or gemm.attributes.get_int("transA", 0):
            return result.fail("the Gemm scales or transposes its input", rows)
        if not is_vector(bias) or not weight.is_initializer():
            return result.fail("weight or bias is not stored", [weight, bias])
        if x.shape is None or x.shape.rank() < 3:
            return result.fail("the input's shape is not known", x)
        if not _restores(shape, unflattened, list(x.shape)[:-1]):
            return result.fail("the second reshape does not restore the leading axes", unflattened)
        transposed = bool(gemm.attributes.get_int("transB", 0))
        num_in = weight.shape[1 if transposed else 0]
        if x.shape[-1] != num_in:
            return result.fail("the first reshape splits or joins the last axis", x)
        return result

    def rewrite(self, op, x, weight, bias, rows, **_):
        if rows.producer().attributes.get_int("transB", 0):
            array = np.ascontiguousarray(weight.const_value.numpy().T)
            weight = op.initializer(ir.Tensor(array, name=f"{weight.name}.transposed"))
        return op.Add(op.MatMul(x, weight, _outputs=[rows.name]), bias)  # the product keeps the Gemm's name


def _restores(shape: ir.Value, unflattened: ir.Value, leading: list[Any]) -> bool:
    """Whether the result's leading axes are the input's: by the shape given, or by the shape inferred."""
    constant = ir.convenience.get_const_tensor(shape)
    if constant is None:
        return unflattened.shape is not None and list(unflattened.shape)[:-1] == leading
    sizes = constant.numpy().reshape(-1).tolist()[:-1]
    if len(sizes) != len(leading) or sizes.count(-1) > 1:
        return False
    # -1 stands for the one axis whose size is not known; every other size must be the input's own.
    return all(size == (axis if isinstance(axis, int) else -1) for size, axis in zip(sizes, leading, strict=True))


def rules() -> list[pattern.RewriteRule]:
    return [FlattenedLinear.rule()]
