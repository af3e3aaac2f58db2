"""Codes of every kind as signed ones: the same weights, no code rounded."""

from __future__ import annotations

import numpy as np
import pytest
from trtbuild.quantize.signed_codes import SignedCodes, signed_codes

ROWS, COLUMNS = 6, 128


def weights_of(signed: SignedCodes) -> np.ndarray:
    """float64 [out, in], written from the definition."""
    blocks = signed.codes.astype(np.float64).reshape(*signed.scales.shape, -1) * signed.scales[:, :, None]
    weights = blocks.reshape(len(blocks), signed.num_copies, -1).sum(axis=1)
    if signed.shifts is None:
        return weights
    return weights + np.repeat(signed.shifts, weights.shape[1] // signed.shifts.shape[1], axis=1)


@pytest.mark.parametrize("zeros", ["none", "integer", "float"])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(("low", "high"), [(0, 15), (-8, 7), (0, 31), (-16, 15), (-32, 31), (-128, 127), (0, 255)])
def test_the_weights_are_the_same(low: int, high: int, groups: int, zeros: str) -> None:
    random = np.random.default_rng(high)
    codes = random.integers(low, high + 1, (ROWS, COLUMNS))
    codes[:, 0], codes[:, 1] = low, high
    scales = random.uniform(-1, 1, (ROWS, groups)).astype(np.float32)
    points = {
        "none": np.zeros((ROWS, groups)),
        "integer": random.integers(low, high + 1, (ROWS, groups)).astype(np.float64),
        "float": random.uniform(-300, 300, (ROWS, groups)).astype(np.float32).astype(np.float64),
    }[zeros]
    signed = signed_codes(codes, scales, None if zeros == "none" else points)
    wanted = (codes.reshape(ROWS, groups, -1) - points[:, :, None]) * scales.astype(np.float64)[:, :, None]
    np.testing.assert_allclose(weights_of(signed), wanted.reshape(ROWS, -1), atol=3e-5)  # m is in float32
    assert (signed.bits, signed.num_copies) == (4, 1 if high - low == 15 else 2)
    assert -8 <= signed.codes.min() <= signed.codes.max() <= 7
    assert signed.codes.shape == (ROWS, signed.num_copies * COLUMNS)
    assert signed.block_size < COLUMNS or signed.num_copies == 2


def test_what_needs_no_correction() -> None:
    """Symmetric codes and zero points in the middle; 8 bits as far as two halves reach (-136 .. 119)."""
    scales = np.ones((1, 2), np.float32)
    nibbles = np.arange(16).reshape(1, 16)
    assert signed_codes(nibbles.repeat(2, 1), scales, np.full((1, 2), 8)).shifts is None
    assert signed_codes(nibbles.repeat(2, 1) - 8, scales, None).shifts is None
    assert signed_codes(np.array([[-127, 119, -32, 31]]), scales, None).shifts is None
    wide = signed_codes(np.array([[-127, 120, -32, 31]]), scales * 0.5, None)
    assert wide.shifts is not None
    assert wide.shifts.tolist() == [[0.5, 0.0]]  # the first group's codes move down by 1


def test_halves_of_known_codes() -> None:
    signed = signed_codes(np.array([[31, -32, 7, 8, -8, -9]]), np.array([[0.5, 2.0, 1.0]], np.float32), None)
    assert signed.codes.tolist() == [[2, -2, 0, 1, 0, -1, -1, 0, 7, -8, -8, 7]]
    assert signed.scales.tolist() == [[8.0, 32.0, 16.0, 0.5, 2.0, 1.0]]


def test_eight_bits_with_a_scale_a_row_stay_whole() -> None:
    codes = np.array([[-127, 127], [-128, 0]])
    signed = signed_codes(codes, np.array([[0.5], [2.0]], np.float32), None)
    assert (signed.bits, signed.num_copies, signed.shifts) == (8, 1, None)
    assert signed.codes.tolist() == codes.tolist()


def test_a_group_of_equal_weights_does_not_cancel() -> None:
    """GGUF stores such a group with scale 1 and its value as the zero point: no large numbers may meet in FP16."""
    signed = signed_codes(np.zeros((1, 64)), np.ones((1, 2), np.float32), np.array([[0.003, -0.25]]))
    assert not signed.codes.any()
    assert signed.shifts is not None
    assert signed.shifts.tolist() == [[np.float32(-0.003), 0.25]]
