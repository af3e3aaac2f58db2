"""FP8 E4M3: 1 sign, 4 exponent and 3 mantissa bits, no infinity, largest value 448, beyond which a cast gives NaN.

So every cast here saturates, and no scale is ever zero (https://arxiv.org/abs/2209.05433, section 3).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

MAX_VALUE = 448.0

Float32 = npt.NDArray[np.float32]


class Fp8Rows(NamedTuple):
    """Rows in FP8, one scale a row."""

    codes: npt.NDArray[Any]  # float8_e4m3fn [rows, columns]
    scales: Float32  # [rows]; never zero, never NaN


def to_fp8(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Casts with saturation: 449 and 1e4 both give 448. NaN stays NaN, since hiding it would hide a fault."""
    return np.clip(np.asarray(values, np.float32), -MAX_VALUE, MAX_VALUE).astype(ml_dtypes.float8_e4m3fn)


def quantize_rows(weights: Float32, scales: Float32 | None = None) -> Fp8Rows:
    """Quantises finite [rows, columns] with the largest magnitude of each row at 448; a row of zeros has scale 1.

    Args:
        scales: [rows], where they are given.
    """
    scales = scale_of(np.abs(weights).max(axis=1)) if scales is None else scales
    return Fp8Rows(to_fp8(weights / scales[:, None]), scales)


def scale_of(largest: npt.ArrayLike) -> Float32:
    """Scales for given largest magnitudes; 1 where the magnitude is zero or its scale would be a denormal."""
    scales = np.asarray(np.asarray(largest, np.float32) / np.float32(MAX_VALUE))
    return np.where(scales < np.finfo(np.float32).tiny, np.float32(1.0), scales).astype(np.float32)


def dequantize_rows(rows: Fp8Rows) -> Float32:
    """The float32 weights that the codes stand for."""
    return np.asarray(rows.codes.astype(np.float32) * rows.scales[:, None], np.float32)
