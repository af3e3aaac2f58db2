"""Weight matrices in storage form: what `linear` and `embedding` multiply with and gather from.

A matrix is stored once, [out, in] as in the checkpoint, and may be used several times (a tied embedding is both the
gather and the head). "f32" keeps floats. "int8" keeps codes in bytes and scales: the checkpoint's own where it has
them (kept_codes.py), else those of quantize/int8.py. "int4" also packs the checkpoint's own codes of 4 bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from trtdecode.errors import CheckpointError

from trtbuild.checkpoint import load
from trtbuild.checkpoint.grouped_codes import GroupedCodes, take
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.kept_codes import joined_codes
from trtbuild.graph.share import Share, Size, share_of
from trtbuild.quantize.int8 import group_size_for, quantize_rows

Float32 = npt.NDArray[np.float32]
Restore = Callable[[Float32], Float32]

#: Groups that a border between ranks makes smaller than this become one group a row: their scales would fill the file.
MIN_GROUP_SIZE = 8


class Matrix(Protocol):
    """A stored [out, in] matrix."""

    def dense(self, g: GraphBuilder) -> ir.Value:
        """f32 [out, in], to be multiplied with."""
        ...

    def input(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        """x f32[T, in] with its columns in the order of the stored ones."""
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

    def input(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        return x

    def gather(self, g: GraphBuilder, row_ids: ir.Value) -> ir.Value:
        return g.op("Gather", self.values, row_ids, axis=0)


@dataclass(frozen=True)
class CodedMatrix:
    """Stored as integer codes [out, in] and f32 scales [out, in / group size], perhaps with zero points of the
    codes' type."""

    codes: ir.Value
    scales: ir.Value
    zeros: ir.Value | None
    num_columns: int
    group_size: int
    column_order: ir.Value | None = None  # i64 [in], where columns were regrouped

    def dense(self, g: GraphBuilder) -> ir.Value:
        # The axis is always explicit: ONNX's default of 1 is right for neither of the two usual layouts.
        optional = () if self.zeros is None else (self.zeros,)
        return g.op("DequantizeLinear", self.codes, self.scales, *optional, axis=1, block_size=self.group_size)

    def input(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        return x if self.column_order is None else g.op("Gather", x, self.column_order, axis=1)

    def gather(self, g: GraphBuilder, row_ids: ir.Value) -> ir.Value:
        # Gather first, dequantise the few rows after: gathering from a dequantised matrix makes OpenVINO unfold all
        # of a tied embedding to f32 (measured: the head then takes five times as long).
        assert self.zeros is None, "embeddings are stored without integer zero points"
        assert self.column_order is None, "and with their columns in order"
        codes = g.op("Cast", g.op("Gather", self.codes, row_ids, axis=0), to=int(ir.DataType.FLOAT))
        scales = g.op("Gather", self.scales, row_ids, axis=0)
        num_groups = self.num_columns // self.group_size
        grouped = g.op("Reshape", codes, g.ints(-1, num_groups, self.group_size))
        scaled = g.op("Mul", grouped, g.op("Unsqueeze", scales, g.ints(2)))
        return g.op("Reshape", scaled, g.ints(-1, self.num_columns))


@dataclass(frozen=True)
class ShiftedMatrix:
    """Stored as unsigned codes [out, groups, group size] with f32 scales and f32 zero points [out, groups, 1].

    DequantizeLinear's zero points are integers, so (code - zero) * scale is written out. The third axis is stored, not
    made by a Reshape: OpenVINO recognises compressed weights only where the codes are a constant by themselves.
    """

    codes: ir.Value
    scales: ir.Value
    zeros: ir.Value
    num_columns: int

    def dense(self, g: GraphBuilder) -> ir.Value:
        return self._values(g, self.codes, self.scales, self.zeros)

    def input(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        return x

    def gather(self, g: GraphBuilder, row_ids: ir.Value) -> ir.Value:
        return self._values(
            g, *(g.op("Gather", part, row_ids, axis=0) for part in (self.codes, self.scales, self.zeros))
        )

    def _values(self, g: GraphBuilder, codes: ir.Value, scales: ir.Value, zeros: ir.Value) -> ir.Value:
        shifted = g.op("Sub", g.op("Cast", codes, to=int(ir.DataType.FLOAT)), zeros)
        return g.op("Reshape", g.op("Mul", shifted, scales), g.ints(-1, self.num_columns))


def matrix(
    g: GraphBuilder,
    names: tuple[str, ...],
    shapes: tuple[tuple[Size, Size], ...],
    stored_as: str,
    restore: Restore | None = None,
    *,
    gathered: bool = False,
) -> Matrix:
    """The checkpoint's matrices `names` one below the other as one matrix called `stored_as`.

    Args:
        shapes: [out, in] of each, after `restore`; shares of them where the rank holds a part.
        gathered: rows will be looked up in it.
        restore: turns a stored tensor into [out, in] with rows in the order of the heads; None where it is so already.
    """
    rows, columns = [share_of(out) for out, _ in shapes], share_of(shapes[0][1])
    if restore is None:
        for name, share in zip(names, rows, strict=True):
            g.expect(name, (share.full, columns.full))
        kept = keep_codes(g, names, stored_as, rows, columns, gathered=gathered)
        if kept is not None:
            return kept
    pieces = itertools.chain.from_iterable(
        rows_of(g, name, shape, restore) for name, shape in zip(names, shapes, strict=True)
    )
    shape = (sum(share.size for share in rows), columns.size)
    if g.precision == "f32":
        return FloatMatrix(g.store(stored_as, shape, pieces))
    return _store_int8(g, stored_as, shape, pieces, _group_size(columns, g.group_size))


def rows_of(g: GraphBuilder, name: str, shape: tuple[Size, ...], restore: Restore | None) -> Iterator[Float32]:
    """The rank's share of a tensor, in pieces along its first axis; in one where it has to be restored."""
    rows, *others = (share_of(size) for size in shape)
    pieces = g.weights.rows(name) if restore is None else [_restored(g, name, (rows, *others), restore)]
    begin = 0
    for piece in pieces:
        kept = take(piece, [(first - begin, last - begin) for first, last in rows.ranges], axis=0)
        begin += len(piece)
        for axis, share in enumerate(others, start=1):
            kept = kept if share.is_whole else take(kept, share.ranges, axis)
        if kept.size:
            yield kept


def _restored(g: GraphBuilder, name: str, shares: tuple[Share, ...], restore: Restore) -> Float32:
    shape = tuple(share.full for share in shares)
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
    return restored


def _group_size(columns: Share, wanted: int) -> int:
    """The group size of the whole matrix, or a divisor of it where a border between ranks cuts a group."""
    borders = itertools.chain.from_iterable(columns.ranges)
    fine = math.gcd(group_size_for(columns.full, wanted), *borders)
    return fine if fine >= MIN_GROUP_SIZE else group_size_for(columns.size, wanted)


def _store_int8(
    g: GraphBuilder, name: str, shape: tuple[int, int], pieces: Iterator[Float32], group_size: int
) -> CodedMatrix:
    """Quantises while it streams: one piece is held at a time."""
    num_rows, num_columns = shape
    scales: list[Float32] = []

    def codes() -> Iterator[npt.NDArray[np.int8]]:
        for piece in pieces:
            quantized = quantize_rows(piece, group_size)
            scales.append(quantized.scales)
            yield quantized.codes

    stored_codes = g.store(name, shape, codes())
    stored_scales = g.store(f"{name}_scale", (num_rows, num_columns // group_size), scales)
    return CodedMatrix(stored_codes, stored_scales, None, num_columns, group_size)


def keep_codes(
    g: GraphBuilder, names: tuple[str, ...], stored_as: str, rows: Sequence[Share], columns: Share, *, gathered: bool
) -> Matrix | None:
    """The matrices `names` in the codes that the checkpoint stores; None where it has none, or for f32.

    "int8" keeps codes of any width in bytes: nothing is quantised twice. "int4" packs those of 4 bits, except of
    matrices that rows are gathered from, since few runtimes gather halves of bytes.
    """
    kept = None if g.precision == "f32" else joined_codes(g.weights, names, rows, columns)
    if kept is None:
        return None
    packed = g.precision == "int4" and kept.bits <= 4 and not gathered
    if kept.zeros is not None and kept.zeros.dtype == np.float32:
        stored: Matrix = _store_shifted(g, kept, stored_as, packed)
    elif gathered and (kept.zeros is not None or kept.column_order is not None):
        return None
    else:
        stored = _store_coded(g, kept, stored_as, packed)
    g.num_packed += packed
    return stored


def _store_coded(g: GraphBuilder, kept: GroupedCodes, name: str, packed: bool) -> CodedMatrix:
    order = kept.column_order
    return CodedMatrix(
        codes=_store_codes(g, name, kept.codes, packed),
        scales=g.store(f"{name}_scale", kept.scales.shape, [kept.scales]),
        zeros=None if kept.zeros is None else _store_codes(g, f"{name}_zero", kept.zeros, packed),
        num_columns=kept.codes.shape[1],
        group_size=kept.group_size,
        column_order=None if order is None else g.store(f"{name}_order", order.shape, [order]),
    )


def _store_shifted(g: GraphBuilder, kept: GroupedCodes, name: str, packed: bool) -> ShiftedMatrix:
    assert kept.zeros is not None
    assert kept.column_order is None, "formats with float zero points keep their columns in order"
    groups = (*kept.scales.shape, 1)
    return ShiftedMatrix(
        codes=_store_codes(g, name, kept.codes.reshape(*kept.scales.shape, -1), packed),
        scales=g.store(f"{name}_scale", groups, [kept.scales.reshape(groups)]),
        zeros=g.store(f"{name}_zero", groups, [kept.zeros.reshape(groups)]),
        num_columns=kept.codes.shape[1],
    )


def _store_codes(g: GraphBuilder, name: str, codes: Any, packed: bool) -> ir.Value:
    return g.store_four_bit(name, codes) if packed else g.store(name, codes.shape, [codes])
