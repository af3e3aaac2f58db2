"""What the rules for stored codes write: a Gemm over signed codes, and what zero points leave to be added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from trtbuild.quantize.signed_codes import SignedCodes

#: Mark of nodes whose stored operand must not be quantised.
KEEP_FLOAT = "trtdecode.keep_float"

#: Mark of each Gemm over codes that is written here: over how many copies of its input.
NUM_COPIES = "trtdecode.num_copies"

#: Mark of nodes that layers over the same input share: what they compute of it.
SHARED = "trtdecode.shared"


def coded_gemm(op: Any, x: ir.Value, signed: SignedCodes, bias: ir.Value | None, name: str) -> Any:
    """x W^T (+ b) for x [T, in], with W in signed codes.

    Args:
        op: the rewriter's builder.
        name: of the result; new names begin with it.
    """
    if signed.shifts is None:
        return _product(op, x, signed, bias, name)
    product = _product(op, x, signed, None, f"{name}/codes")
    num_groups = signed.shifts.shape[1]
    group_size = signed.codes.shape[1] // signed.num_copies // num_groups

    def group_sums(result: str) -> Any:  # TensorRT puts it into the kernel that computes x
        shape = op.initializer(ir.Tensor(np.array([-1, num_groups, group_size]), name=f"{result}/shape"))
        axis = op.initializer(ir.Tensor(np.array([2]), name=f"{result}/axis"))
        return op.ReduceSum(op.Reshape(x, shape), axis, keepdims=0, _outputs=[result])

    shifts = op.initializer(ir.Tensor(signed.shifts, name=f"{name}/shifts"))
    inputs = (_shared(x, f"group_sums_{num_groups}", group_sums), shifts)
    correction = op.Gemm(*_given(*inputs, bias), transB=1, _outputs=[f"{name}/correction"])
    correction.producer().metadata_props[KEEP_FLOAT] = "1"
    return op.Add(product, correction)


def _product(op: Any, x: ir.Value, signed: SignedCodes, bias: ir.Value | None, name: str) -> Any:
    """x (s q)^T (+ b)."""
    is_odd = signed.bits == 4 and len(signed.codes) % 2 == 1
    weight = _dequantized(op, signed, f"{name}/weight", num_zero_rows=int(is_odd))
    copies = signed.num_copies
    if copies > 1:
        x = _shared(x, f"copies_{copies}", lambda result: op.Concat(*[x] * copies, axis=1, _outputs=[result]))
    if not is_odd:
        product = op.Gemm(*_given(x, weight, bias), transB=1, _outputs=[name])
        node = product.producer()
    else:
        # Over an odd number of outputs TensorRT-RTX 1.7 dequantises INT4 in a kernel of its own: one more, cut off.
        padded = op.Gemm(x, weight, transB=1, _outputs=[f"{name}/even"])
        node = padded.producer()
        begin, end, axis = (
            op.initializer(ir.Tensor(np.array([value]), name=f"{name}/{what}"))
            for what, value in (("begin", 0), ("end", len(signed.codes)), ("axis", 1))
        )
        product = op.Slice(padded, begin, end, axis, _outputs=[name if bias is None else f"{name}/odd"])
        product = product if bias is None else op.Add(product, bias, _outputs=[name])
    node.metadata_props[NUM_COPIES] = str(copies)
    return product


def _dequantized(op: Any, signed: SignedCodes, name: str, *, num_zero_rows: int) -> Any:
    if signed.bits == 8:
        codes = op.initializer(ir.Tensor(signed.codes, name=f"{name}_codes"))
        scales = op.initializer(ir.Tensor(signed.scales.reshape(-1), name=f"{name}_scales"))
        return op.DequantizeLinear(codes, scales, axis=0, _outputs=[name])
    rows = ((0, num_zero_rows), (0, 0))
    packed = np.pad(signed.codes, rows).astype(ml_dtypes.int4)
    codes = op.initializer(ir.Tensor(packed, dtype=ir.DataType.INT4, name=f"{name}_codes"))
    scales = op.initializer(ir.Tensor(np.pad(signed.scales, rows, constant_values=1), name=f"{name}_scales"))
    return op.DequantizeLinear(codes, scales, axis=1, block_size=signed.block_size, _outputs=[name])


def _shared(x: ir.Value, what: str, make: Callable[[str], Any]) -> Any:
    """What an earlier rewrite already computes of x, or a new node for it."""
    name = f"{x.name}/{what}"
    for user in x.consumers():
        for node in (user, *user.outputs[0].consumers()):
            if node.metadata_props.get(SHARED) == name:
                return node.outputs[0]
    value = make(name)
    value.producer().metadata_props[SHARED] = name
    return value


def _given(*values: ir.Value | None) -> list[ir.Value]:
    return [value for value in values if value is not None]
