"""INT8 weight codes: exact values, zero groups, and the block types that must come through unchanged."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from trtbuild.quantize.int8 import dequantize_rows, group_size_for, quantize_rows


def test_codes_and_scales_by_hand() -> None:
    weights = np.array([[1.27, -0.635, 0.0, 0.3], [0.0, 0.02, -0.04, 0.01]], np.float32)
    codes, scales = quantize_rows(weights, 2)
    np.testing.assert_allclose(scales, [[0.01, 0.3 / 127], [0.02 / 127, 0.04 / 127]], rtol=1e-6)
    # -0.635 / 0.01 = -63.5 rounds to the even neighbour.
    assert codes.tolist() == [[127, -64, 0, 127], [0, 127, -127, 32]]


def test_scales_are_one_a_row_of_the_output() -> None:
    """Case C44: INT8 of [[1, 100], [2, 200]] stored [in, out]; the output dimension is the column."""
    stored_in_out = np.array([[1, 100], [2, 200]], np.float32)
    quantized = quantize_rows(np.ascontiguousarray(stored_in_out.T), 2)
    np.testing.assert_allclose(quantized.scales[:, 0], [2 / 127, 200 / 127], rtol=1e-6)
    # 100 is code 63.5 exactly, between 99.2126 and 100.7874; ties go to the even code. The wrong axis would give
    # 0.7874 and 1.5748 in column 0.
    np.testing.assert_allclose(dequantize_rows(quantized).T, [[128 / 127, 64 * 200 / 127], [2, 200]], rtol=1e-6)


def test_zero_tiny_and_huge_rows() -> None:
    """Case C46: nothing becomes NaN or infinite, and zeros stay exactly zero."""
    weights = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    weights[2] = 0
    weights[3] = 1e-30
    weights[4] = 0
    weights[4, 7] = 1e4
    for group_size in (32, 16):
        quantized = quantize_rows(weights, group_size)
        back = dequantize_rows(quantized)
        assert np.isfinite(quantized.scales).all()
        assert (quantized.scales > 0).all()
        assert not back[2].any()
        np.testing.assert_allclose(back[3], 1e-30, rtol=1e-5)
        np.testing.assert_array_equal(back[4], weights[4])


def test_denormal_group_is_zero_not_nan() -> None:
    quantized = quantize_rows(np.full((1, 32), 1e-44, np.float32), 32)
    assert not quantized.codes.any()
    assert quantized.scales.tolist() == [[1.0]]


@pytest.mark.parametrize("group_size", [16, 32, 64])
def test_error_is_at_most_half_a_step(group_size: int) -> None:
    weights = np.random.default_rng(1).standard_normal((64, 192)).astype(np.float32)
    quantized = quantize_rows(weights, group_size)
    error = np.abs(dequantize_rows(quantized) - weights).reshape(64, -1, group_size)
    assert (error <= quantized.scales[:, :, None] * 0.5001).all()


def test_q8_0_comes_through_exactly() -> None:
    """A Q8_0 block has 32 values with one scale of max / 127: our groups find the same codes again."""
    weights = np.random.default_rng(2).standard_normal((64, 128)).astype(np.float32)
    stored = gguf.dequantize(gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0), gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_allclose(dequantize_rows(quantize_rows(stored, 32)), stored, rtol=3e-7)


def test_group_size_falls_back_to_the_row() -> None:
    assert [group_size_for(columns) for columns in (576, 32, 48, 100)] == [32, 32, 48, 100]
