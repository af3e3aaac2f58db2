"""Weight matrices in storage form: what `linear` and `embedding` multiply with and gather from.

A matrix is stored once, [out, in] as in the checkpoint, and may be used several times (a tied embedding is both the
gather and the head). "f32" keeps floats; "int8" keeps codes and scales (quantize/int8.py) and a DequantizeLinear.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from trtdecode.errors import CheckpointError

from trtbuild.checkpoint import load
from trtbuild.graph.builder import GraphBuilder
from trtbuild.quantize.int8 import group_size_for, quantize_rows

Float32 = npt.NDArray[np.float32]
Restore = Callable[[Float32], Float32]


class Matrix(Protocol):
    """A stored [out, in] matrix."""

    def dense(self, g: GraphBuilder) -> ir.Value:
        """f32 [out, in], to be multiplied with."""
        ...

    def gather(self, g: GraphBuilder, row_ids: ir.Value) -> ir.Value:
        """f32 [T, in]: the rows `row_ids`, i64[T]."""
        ...


@dataclass(frozen=True)
class FloatMatrix:
    """Stored as f32."""

    values: ir.Value

    def dense(self, g: GraphBuilder) -> ir.Value:
        return self.values

    def gather(self, g: GraphBuilder, row_ids: ir.Value) -> ir.Value:
        return g.op("Gather", self.values, row_ids, axis=0)


@dataclass(frozen=True)
class Int8Matrix:
    """Stored as int8 codes [out, in] and f32 scales [out, in / group size]."""

    codes: ir.Value
    scales: ir.Value
    num_columns: int
    group_size: int

    def dense(self, g: GraphBuilder) -> ir.Value:
        # The axis is always explicit: ONNX's default of 1 is right for neither of the two usual layouts.
        return g.op("DequantizeLinear", self.codes, self.scales, axis=1, block_size=self.group_size)

    def gather(self, g: GraphBuilder, row_ids: ir.Value) -> ir.Value:
        # Gather first, dequantise the few rows after: gathering from a dequantised matrix makes OpenVINO unfold all
        # of a tied embedding to f32 (measured: the head then takes five times as long).
        codes = g.op("Cast", g.op("Gather", self.codes, row_ids, axis=0), to=int(ir.DataType.FLOAT))
        scales = g.op("Gather", self.scales, row_ids, axis=0)
        num_groups = self.num_columns // self.group_size
        grouped = g.op("Reshape", codes, g.ints(-1, num_groups, self.group_size))
        scaled = g.op("Mul", grouped, g.op("Unsqueeze", scales, g.ints(2)))
        return g.op("Reshape", scaled, g.ints(-1, self.num_columns))


def store_matrix(g: GraphBuilder, name: str, shape: tuple[int, int], pieces: Iterator[Float32]) -> Matrix:
    """Stores [out, in] given in pieces of rows, in the builder's precision. Streaming: one piece is held at a time."""
    if g.precision == "int8":
        return _store_int8(g, name, shape, pieces)
    return FloatMatrix(g.store(name, shape, pieces))


def matrix(
    g: GraphBuilder,
    names: tuple[str, ...],
    shapes: tuple[tuple[int, int], ...],
    stored_as: str,
    restore: Restore | None = None,
) -> Matrix:
    """The checkpoint's matrices `names` one below the other as one matrix called `stored_as`.

    Args:
        shapes: [out, in] of each, after `restore`.
        restore: turns a stored tensor into [out, in] with rows in the order of the heads; None where it is so already.
    """
    if restore is None:
        for name, shape in zip(names, shapes, strict=True):
            g.expect(name, shape)
    num_rows = sum(rows for rows, _ in shapes)
    pieces = itertools.chain.from_iterable(
        rows_of(g, name, shape, restore) for name, shape in zip(names, shapes, strict=True)
    )
    return store_matrix(g, stored_as, (num_rows, shapes[0][1]), pieces)


def rows_of(g: GraphBuilder, name: str, shape: tuple[int, ...], restore: Restore | None) -> Iterator[Float32]:
    """A tensor in pieces along its first axis; whole where it has to be restored."""
    if restore is None:
        yield from g.weights.rows(name)
        return
    stored = load(g.weights, name)
    try:
        restored = restore(stored)
    except ValueError:
        restored = stored
    if restored.shape != shape:
        raise CheckpointError(
            f"tensor {name!r} has shape {list(stored.shape)}, which does not make {list(shape)}; "
            "config and weights are of different models"
        )
    yield restored


def _store_int8(g: GraphBuilder, name: str, shape: tuple[int, int], pieces: Iterator[Float32]) -> Int8Matrix:
    num_rows, num_columns = shape
    group_size = group_size_for(num_columns)
    scales: list[Float32] = []

    def codes() -> Iterator[npt.NDArray[np.int8]]:
        for piece in pieces:
            quantized = quantize_rows(piece, group_size)
            scales.append(quantized.scales)
            yield quantized.codes

    stored_codes = g.store(name, shape, codes())
    stored_scales = g.store(f"{name}_scale", (num_rows, num_columns // group_size), scales)
    return Int8Matrix(stored_codes, stored_scales, num_columns, group_size)
