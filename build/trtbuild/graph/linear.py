"""Linear layers and embeddings."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trtbuild.checkpoint import load
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.matrix import Matrix, matrix


def embedding(g: GraphBuilder, name: str, num_rows: int, width: int) -> Matrix:
    """The checkpoint's `<name>.weight` [num_rows, width]; `.gather(g, ids)` looks tokens up."""
    full = f"{name}.weight"
    return matrix(g, (full,), ((num_rows, width),), full)


def linear(g: GraphBuilder, x: ir.Value, name: str, num_in: int, num_out: int) -> ir.Value:
    """y[T, num_out] = x[T, num_in] W^T (+ b), with `<name>.weight` [num_out, num_in] and `<name>.bias` if present."""
    return merged_linear(g, x, (name,), num_in, (num_out,), name)


def merged_linear(
    g: GraphBuilder, x: ir.Value, names: tuple[str, ...], num_in: int, nums_out: tuple[int, ...], stored_as: str
) -> ir.Value:
    """Several linear layers over the same x as one matmul; the result holds their outputs side by side."""
    weights = matrix(
        g, tuple(f"{name}.weight" for name in names), tuple((out, num_in) for out in nums_out), f"{stored_as}.weight"
    )
    return multiply(g, x, weights, _bias(g, names, nums_out, stored_as))


def multiply(g: GraphBuilder, x: ir.Value, weights: Matrix, bias: ir.Value | None = None) -> ir.Value:
    """x W^T (+ b)."""
    inputs = (x, weights.dense(g)) if bias is None else (x, weights.dense(g), bias)
    return g.op("Gemm", *inputs, transB=1)


def _bias(g: GraphBuilder, names: tuple[str, ...], nums_out: tuple[int, ...], stored_as: str) -> ir.Value | None:
    present = [f"{name}.bias" in g.weights for name in names]
    if not any(present):
        return None
    parts = []
    for name, num_out, has_bias in zip(names, nums_out, present, strict=True):
        if has_bias:
            g.expect(f"{name}.bias", (num_out,))
        parts.append(load(g.weights, f"{name}.bias") if has_bias else np.zeros(num_out, np.float32))
    return g.store(f"{stored_as}.bias", (sum(nums_out),), parts)
