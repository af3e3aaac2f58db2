"""Stored codes of any kind as those that TensorRT multiplies with: signed INT4 in blocks, or INT8 with a scale a row.

A weight is w = s (c - z), with codes c of up to 8 bits and zero points z of any kind (none, integers, floats). With an
offset o for each group, chosen so that q = c - o is small,

    w = s q + m,  m = s (o - z),  hence  x w^T = x (s q)^T + sums(x) m^T

where sums(x) adds x over each group. o = z, and thus m = 0, wherever that leaves q in range. In groups TensorRT takes
INT4 alone into a matmul (it unfolds INT8 in blocks to floats in every step), so wider codes become two halves over the
same input, q = 16 h + l with h and l in -8 .. 7:

    x (s q)^T = [x, x] [16 s h, s l]^T

Codes are never rounded, and of the floats only m is computed anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int16]

INT4 = (-8, 7)
INT4_PAIR = (16 * -8 - 8, 16 * 7 + 7)
INT8 = (-128, 127)


@dataclass(frozen=True, slots=True)
class SignedCodes:
    """w in codes over `num_copies` copies of the input, side by side.

    Attributes:
        codes: int8 [out, num_copies * in]; in -8 .. 7 where `bits` is 4.
        scales: f32 [out, blocks]; blocks are of equal width. One block a row where `bits` is 8.
        shifts: m, f32 [out, groups of the input]; None where all are 0.
    """

    bits: int
    codes: npt.NDArray[np.int8]
    scales: Float32
    shifts: Float32 | None
    num_copies: int = 1

    @property
    def block_size(self) -> int:
        return int(self.codes.shape[1] // self.scales.shape[1])


def signed_codes(codes: npt.NDArray[Any], scales: Float32, zeros: npt.NDArray[Any] | None) -> SignedCodes:
    """Brings stored codes into the form above.

    Args:
        codes: integers [out, in], within 8 bits of either sign.
        scales: [out, groups], of any sign.
        zeros: [out, groups], integers or floats; None means 0.
    """
    grouped = codes.astype(np.int16).reshape(*scales.shape, -1)
    exact = np.zeros(scales.shape) if zeros is None else zeros.astype(np.float64)
    spread = int((grouped.max(axis=2) - grouped.min(axis=2)).max())
    if spread <= INT4[1] - INT4[0]:
        centred, shifts = _centred(grouped, scales, exact, INT4)
        return SignedCodes(4, _flat(centred), _two_blocks_or_more(scales, centred.shape[2]), shifts)
    if scales.shape[1] == 1 and (scales > 0).all():  # the only ones that it takes of a scale a row
        centred, shifts = _centred(grouped, scales, exact, INT8)
        return SignedCodes(8, _flat(centred), scales, shifts)
    centred, shifts = _centred(grouped, scales, exact, INT4_PAIR)
    halves = (_flat((centred + 8) >> 4), _flat(((centred + 8) & 15) - 8))
    both = np.concatenate([scales * np.float32(16), scales], axis=1)
    return SignedCodes(4, np.concatenate(halves, axis=1), both, shifts, num_copies=2)


def _centred(
    grouped: Integers, scales: Float32, zeros: npt.NDArray[np.float64], limits: tuple[int, int]
) -> tuple[Integers, Float32 | None]:
    """Codes within the limits, and m: with the integers nearest to the zero points, m is as small as it can be."""
    low, high = limits
    offsets = np.clip(np.rint(zeros), grouped.max(axis=2) - high, grouped.min(axis=2) - low).astype(np.int16)
    shifts = (scales.astype(np.float64) * (offsets - zeros)).astype(np.float32)
    return grouped - offsets[:, :, None], shifts if shifts.any() else None


def _flat(grouped: Integers) -> npt.NDArray[np.int8]:
    return grouped.reshape(len(grouped), -1).astype(np.int8)


def _two_blocks_or_more(scales: Float32, group_size: int) -> Float32:
    """One single group a row becomes two with the same scale: over a single block TensorRT-RTX 1.7 dequantises in a
    kernel of its own in every step, not inside the matmul."""
    return np.repeat(scales, 2, axis=1) if scales.shape[1] == 1 and group_size % 2 == 0 else scales
