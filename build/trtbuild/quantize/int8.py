"""INT8 weights: symmetric, one float32 scale per group of a row (or per whole row).

    codes = round(w / scale), scale = max|w| of the group / 127

Only weights; activations stay float. Groups of 32 are the default because GGUF's blocks are 32 wide: a Q8_0 tensor
comes through exactly. Products whose inputs are quantised to INT8 as well are faster with a scale a row: inputs and
weights are scaled once a group, and theirs may then be larger than 32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MAX_CODE = 127
DEFAULT_GROUP_SIZE = 32


class Int8Rows(NamedTuple):
    """Quantised rows."""

    codes: npt.NDArray[np.int8]  # [rows, columns]
    scales: npt.NDArray[np.float32]  # [rows, columns / group size]; never zero, never NaN


def group_size_for(num_columns: int, wanted: int = DEFAULT_GROUP_SIZE) -> int:
    """The group size for rows of `num_columns`: `wanted` where it divides, else (and for 0) the whole row."""
    return wanted if wanted and num_columns % wanted == 0 else num_columns


def quantize_rows(
    weights: npt.NDArray[np.float32], group_size: int, scales: npt.NDArray[np.float32] | None = None
) -> Int8Rows:
    """Quantises [rows, columns] along its columns.

    Args:
        weights: finite float32.
        group_size: divides the number of columns.
        scales: [rows, groups], where they are given.
    """
    num_rows, num_columns = weights.shape
    groups = weights.reshape(num_rows, num_columns // group_size, group_size)
    if scales is None:
        scales = np.maximum(groups.max(axis=2), -groups.min(axis=2)) / np.float32(MAX_CODE)
    # A group of zeros (or of denormals, whose scale would round to 0) has codes 0 under any scale.
    scales[scales < np.finfo(np.float32).tiny] = 1.0
    codes = groups * (np.float32(1.0) / scales)[:, :, None]
    np.rint(codes, out=codes)
    np.clip(codes, -MAX_CODE, MAX_CODE, out=codes)
    return Int8Rows(codes.astype(np.int8).reshape(num_rows, num_columns), scales)


def dequantize_rows(quantized: Int8Rows) -> npt.NDArray[np.float32]:
    """The float32 weights that the codes stand for: the reference of DequantizeLinear in blocks."""
    num_rows, num_columns = quantized.codes.shape
    groups = quantized.codes.astype(np.float32).reshape(num_rows, quantized.scales.shape[1], -1)
    return (groups * quantized.scales[:, :, None]).reshape(num_rows, num_columns)
