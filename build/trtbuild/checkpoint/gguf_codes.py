"""GGUF's blocks as integer codes with scales and zero points, instead of floats.

Layouts: ggml `ggml-common.h`; a block type's formula is w = d q (+ m), regrouped here as scale * (code - zero), which
is the same to the last bit or two of float32. Types not listed in READERS have no such form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from trtbuild.checkpoint.grouped_codes import Float32, GroupedCodes

Blocks = npt.NDArray[np.uint8]  # [out, blocks of a row, bytes of a block]
Codes = npt.NDArray[Any]


def _half(blocks: Blocks, at: int) -> Float32:
    """float16 at byte `at` of each block, [out, blocks]."""
    return np.ascontiguousarray(blocks[:, :, at : at + 2]).view(np.float16).astype(np.float32)[:, :, 0]


def _nibbles(packed: Blocks) -> Blocks:
    """Low halves of the bytes, then high halves."""
    return np.concatenate([packed & 0xF, packed >> 4], axis=-1)


def _fifth_bits(blocks: Blocks, at: int) -> Blocks:
    """32 bits at byte `at`, one a code, as 0 or 16."""
    bits = np.unpackbits(blocks[:, :, at : at + 4], axis=-1, bitorder="little")
    return bits << np.uint8(4)


def _signed(codes: Codes, scales: Float32, bits: int, middle: int) -> GroupedCodes:
    """w = scale * (code - middle)."""
    shifted = (codes.astype(np.int16) - middle).astype(np.int8)
    return GroupedCodes(shifted.reshape(len(codes), -1), scales, None, bits)


def _with_minimum(codes: Codes, scales: Float32, minimum: Float32, bits: int) -> GroupedCodes:
    """w = scale * code + minimum; a group without a scale is its minimum."""
    flat = scales == 0
    safe = np.where(flat, np.float32(1), scales)
    codes = np.where(flat[:, :, None], np.uint8(0), codes.reshape(*scales.shape, -1))
    return GroupedCodes(codes.reshape(len(codes), -1), safe, (-minimum / safe).astype(np.float32), bits)


def _q8_0(blocks: Blocks) -> GroupedCodes:
    codes = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8)
    return GroupedCodes(codes.reshape(len(blocks), -1), _half(blocks, 0), None, 8)


def _q4_0(blocks: Blocks) -> GroupedCodes:
    return _signed(_nibbles(blocks[:, :, 2:]), _half(blocks, 0), 4, 8)


def _q4_1(blocks: Blocks) -> GroupedCodes:
    return _with_minimum(_nibbles(blocks[:, :, 4:]), _half(blocks, 0), _half(blocks, 2), 4)


def _q5_0(blocks: Blocks) -> GroupedCodes:
    return _signed(_nibbles(blocks[:, :, 6:]) | _fifth_bits(blocks, 2), _half(blocks, 0), 5, 16)


def _q5_1(blocks: Blocks) -> GroupedCodes:
    codes = _nibbles(blocks[:, :, 8:]) | _fifth_bits(blocks, 4)
    return _with_minimum(codes, _half(blocks, 0), _half(blocks, 2), 5)


def _k_scales(blocks: Blocks) -> tuple[Float32, Float32]:
    """Scales and minima of the eight groups of each super-block (Q4_K, Q5_K), both [out, groups]."""
    packed = blocks[:, :, 4:16]
    low, high, mixed = packed[:, :, 0:4], packed[:, :, 4:8], packed[:, :, 8:12]
    scales = np.concatenate([low & 63, (mixed & 0xF) | ((low >> 6) << 4)], axis=-1)
    minima = np.concatenate([high & 63, (mixed >> 4) | ((high >> 6) << 4)], axis=-1)
    spread = _half(blocks, 0)[:, :, None] * scales, -_half(blocks, 2)[:, :, None] * minima
    return spread[0].reshape(len(blocks), -1), spread[1].reshape(len(blocks), -1)


def _k_nibbles(packed: Blocks) -> Blocks:
    """Each 32 bytes hold two groups of 32: low halves, then high halves."""
    return _nibbles(packed.reshape(*packed.shape[:2], 4, 32)).reshape(*packed.shape[:2], 256)


def _q4_k(blocks: Blocks) -> GroupedCodes:
    return _with_minimum(_k_nibbles(blocks[:, :, 16:]), *_k_scales(blocks), 4)


def _q5_k(blocks: Blocks) -> GroupedCodes:
    high = blocks[:, :, 16:48]  # bit g of byte i is the fifth bit of code i of group g
    fifth = (high[:, :, None] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    codes = _k_nibbles(blocks[:, :, 48:]) | (fifth << np.uint8(4)).reshape(*blocks.shape[:2], 256)
    return _with_minimum(codes, *_k_scales(blocks), 5)


def _q6_k(blocks: Blocks) -> GroupedCodes:
    """Two halves of 128 codes: four low bits from `ql`, two high bits from `qh`; sixteen groups of 16."""
    rows, per_row = blocks.shape[:2]
    low = _nibbles(blocks[:, :, :128].reshape(rows, per_row, 2, 64))  # [.., half, 128]
    high = blocks[:, :, 128:192].reshape(rows, per_row, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    codes = low | ((high & np.uint8(3)) << np.uint8(4)).reshape(rows, per_row, 2, 128)
    scales = np.ascontiguousarray(blocks[:, :, 192:208]).view(np.int8).astype(np.float32)
    spread = (scales * _half(blocks, 208)[:, :, None]).reshape(rows, -1)
    return _signed(codes.reshape(rows, -1), spread, 6, 32)


READERS: dict[str, Callable[[Blocks], GroupedCodes]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}

#: Bits of each type's codes.
BITS = {"Q8_0": 8, "Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6}
