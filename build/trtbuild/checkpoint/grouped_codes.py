"""A matrix in integer codes with one scale (and zero point) a group of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


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
