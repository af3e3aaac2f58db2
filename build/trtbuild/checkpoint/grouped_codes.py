"""A matrix in integer codes with one scale (and zero point) a group of a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from trtdecode.errors import UnsupportedError

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


Range = tuple[int, int]  # half-open


def take(array: Array, ranges: Iterable[Range], axis: int) -> Array:
    """The entries of `ranges` along an axis, one range behind the other; what lies outside the array is left out."""
    size = array.shape[axis]
    spans = [(max(begin, 0), min(end, size)) for begin, end in ranges]
    if spans == [(0, size)]:
        return array
    front = (slice(None),) * axis
    parts = [array[(*front, slice(begin, max(begin, end)))] for begin, end in spans]
    return np.ascontiguousarray(np.concatenate(parts, axis))


@dataclass(frozen=True)
class GroupedCodes:
    """A matrix [out, in] in integer codes.

    Attributes:
        codes: [out, in], int8 or uint8, within `bits`.
        scales: f32 [out, groups]; a group is `in / groups` neighbouring columns.
        zeros: [out, groups], of `codes`' type or float32; None means 0.
        column_order: i64 [in] when columns were regrouped: column j here is input channel column_order[j].
    """

    codes: Array
    scales: Float32
    zeros: Array | None
    bits: int
    column_order: npt.NDArray[np.int64] | None = None

    @property
    def group_size(self) -> int:
        return int(self.codes.shape[1] // self.scales.shape[1])

    def part(self, rows: Iterable[Range], columns: Iterable[Range], name: str) -> GroupedCodes:
        """These rows and columns alone, in the same codes.

        Raises:
            UnsupportedError: a range of columns begins or ends inside a group, or columns were regrouped.
        """
        rows, columns = tuple(rows), tuple(columns)
        codes = take(self.codes, rows, axis=0)
        scales = take(self.scales, rows, axis=0)
        zeros = None if self.zeros is None else take(self.zeros, rows, axis=0)
        part = replace(self, codes=codes, scales=scales, zeros=zeros)
        if columns == ((0, self.codes.shape[1]),):
            return part
        if self.column_order is not None:
            raise UnsupportedError(
                f"{name}: its columns were regrouped (GPTQ's desc_act), so ranks cannot share them; import with "
                "tensor_parallel_size 1, or a checkpoint made without desc_act"
            )
        if self.scales.shape[1] == 1:  # one scale a row holds for any of its columns
            return replace(part, codes=take(codes, columns, axis=1))
        size = self.group_size
        if inside := [border for border in (b for ends in columns for b in ends) if border % size]:
            raise UnsupportedError(
                f"{name}: stored in groups of {size} columns, and a border between ranks at column {inside[0]} cuts "
                "one; choose another tensor_parallel_size, or import with precision f32"
            )
        groups = [(begin // size, end // size) for begin, end in columns]
        return replace(
            part,
            codes=take(codes, columns, axis=1),
            scales=take(scales, groups, axis=1),
            zeros=None if zeros is None else take(zeros, groups, axis=1),
        )

    def dequantize(self) -> Float32:
        """f32 [out, in], columns in the model's order."""
        grouped = self.codes.astype(np.float32).reshape(*self.scales.shape, self.group_size)
        if self.zeros is not None:
            grouped -= self.zeros.astype(np.float32)[:, :, None]
        values = (grouped * self.scales[:, :, None]).reshape(self.codes.shape)
        if self.column_order is None:
            return values
        restored = np.empty_like(values)
        restored[:, self.column_order] = values
        return restored
