"""Linear layers and embeddings."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from trtdecode.executor.base import OPERATOR_DOMAIN

from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.kept_codes import DifferentCodes
from trtbuild.graph.matrix import Float32, FloatMatrix, Matrix, Restore, matrix, rows_of
from trtbuild.graph.share import Size, share_of
from trtbuild.quantize.own_scales import scales_of


def embedding(g: GraphBuilder, name: str, num_rows: int, width: int) -> Matrix:
    """The checkpoint's `<name>.weight` [num_rows, width]; `.gather(g, ids)` looks tokens up."""
    full = f"{name}.weight"
    return matrix(g, (full,), ((num_rows, width),), full, gathered=True)


def position_table(g: GraphBuilder, name: str, num_rows: int, width: int, *, skip: int = 0) -> FloatMatrix:
    """A learned position embedding, always in f32: small, and quantising it buys nothing.

    Args:
        skip: rows in front that stand for no position (OPT keeps two).
    """
    full = f"{name}.weight"
    g.expect(full, (num_rows + skip, width))
    rows = rows_of(g, full, (num_rows, width), lambda table: table[skip:])
    return FloatMatrix(g.store(full, (num_rows, width), rows))


def linear(
    g: GraphBuilder,
    x: ir.Value,
    name: str,
    num_in: Size,
    num_out: Size,
    *,
    restore: Restore | None = None,
    reduces: bool = True,
) -> ir.Value:
    """y[T, num_out] = x[T, num_in] W^T (+ b), with `<name>.weight` [num_out, num_in] and `<name>.bias` if present.

    Where the rank holds a share of `num_in`, its y is a part of a sum: the ranks' parts are added, then the bias, once.

    Args:
        restore: see `matrix`; it is applied to the bias too.
        reduces: False leaves the sum to the caller, who may add more to it first; only for layers without a bias.
    """
    if share_of(num_in).is_whole:
        return merged_linear(g, x, (name,), num_in, (num_out,), name, restore=restore)
    weights = matrix(g, (f"{name}.weight",), ((num_out, num_in),), f"{name}.weight", restore)
    y = _with_scales(g, multiply(g, x, weights), (name,), (num_out,), restore)
    bias = _bias(g, (name,), (num_out,), name, restore)
    if not reduces:
        assert bias is None, f"{name}: a bias must be added once, after the sum"
        return y
    y = all_reduce(g, y, share_of(num_out).size)
    return y if bias is None else g.op("Add", y, bias)


def all_reduce(g: GraphBuilder, x: ir.Value, width: int) -> ir.Value:
    """The sum of x f32[T, width] over the tensor-parallel ranks."""
    total = g.op("AllReduce", x, domain=OPERATOR_DOMAIN)
    # ONNX infers no shapes for an operator that it does not know.
    total.shape, total.dtype = ir.Shape(["T", width]), ir.DataType.FLOAT
    return total


def merged_linear(
    g: GraphBuilder,
    x: ir.Value,
    names: tuple[str, ...],
    num_in: Size,
    nums_out: tuple[Size, ...],
    stored_as: str,
    *,
    restore: Restore | None = None,
) -> ir.Value:
    """Several linear layers over the same x as one matmul; the result holds their outputs side by side.

    Layers that the checkpoint stores in codes of different kinds (k-quant files mix them) stay separate: joining them
    would mean quantising them again.
    """
    shapes = tuple((out, num_in) for out in nums_out)
    try:
        weights = matrix(g, tuple(f"{name}.weight" for name in names), shapes, f"{stored_as}.weight", restore)
    except DifferentCodes:
        parts = [linear(g, x, name, num_in, out, restore=restore) for name, out in zip(names, nums_out, strict=True)]
        return g.op("Concat", *parts, axis=1)
    y = multiply(g, x, weights, _bias(g, names, nums_out, stored_as, restore))
    return _with_scales(g, y, names, nums_out, restore)


def _with_scales(
    g: GraphBuilder, y: ir.Value, names: tuple[str, ...], nums_out: tuple[Size, ...], restore: Restore | None
) -> ir.Value:
    """y, with the checkpoint's own scales on the matmul that made it."""
    node = y.producer()
    if node is not None and restore is None:  # rows that are put into another order would need their scales so
        node.metadata_props.update(scales_of(g.weights, names, nums_out))
    return y


def multiply(g: GraphBuilder, x: ir.Value, weights: Matrix, bias: ir.Value | None = None) -> ir.Value:
    """x W^T (+ b)."""
    x = weights.input(g, x)
    inputs = (x, weights.dense(g)) if bias is None else (x, weights.dense(g), bias)
    return g.op("Gemm", *inputs, transB=1)


def transpose(stored: Float32) -> Float32:
    """Restores GPT-2's Conv1D weights, which are stored [in, out]; a bias stays as it is."""
    return np.ascontiguousarray(stored.T)


def _bias(
    g: GraphBuilder, names: tuple[str, ...], nums_out: tuple[Size, ...], stored_as: str, restore: Restore | None
) -> ir.Value | None:
    present = [f"{name}.bias" in g.weights for name in names]
    if not any(present):
        return None
    parts: list[Float32] = []
    for name, num_out, has_bias in zip(names, nums_out, present, strict=True):
        if has_bias:
            g.expect(f"{name}.bias", (share_of(num_out).full,))
            parts += rows_of(g, f"{name}.bias", (num_out,), restore)
        else:
            parts.append(np.zeros(share_of(num_out).size, np.float32))
    return g.store(f"{stored_as}.bias", (sum(share_of(num_out).size for num_out in nums_out),), parts)
