"""Reading constants and attributes in patterns: tolerances are tight, since a near miss must stay as it is."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir


def scalar_of(value: ir.Value | None) -> float | None:
    """The number that a value holds, where it is a constant with one element."""
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1:
        return None
    return float(np.asarray(tensor.numpy(), np.float64).reshape(()))


def is_scalar(value: ir.Value | None, wanted: float) -> bool:
    """Whether a value is the constant `wanted`, to the rounding of FP16."""
    found = scalar_of(value)
    return found is not None and math.isclose(found, wanted, rel_tol=1e-3)


def is_vector(value: ir.Value | None) -> bool:
    """Whether a value is a stored vector: the scale or bias of a norm, the bias of a matmul."""
    return value is not None and value.is_initializer() and value.shape is not None and value.shape.rank() == 1


def is_last_axis(value: ir.Value | None) -> bool:
    """Whether a value is the constant axis list [-1]."""
    return scalar_of(value) == -1


def plain_gemm(node: ir.Node) -> bool:
    """Whether a Gemm is x W (+ b) without factors, and x as it is."""
    attributes = node.attributes
    factors = attributes.get_float("alpha", 1.0), attributes.get_float("beta", 1.0)
    return factors == (1.0, 1.0) and not attributes.get_int("transA", 0)
