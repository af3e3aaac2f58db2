"""FP8 E4M3 saturates and never divides by zero (CASES C46)."""

from __future__ import annotations

import numpy as np
from trtbuild.quantize.fp8 import dequantize_rows, quantize_rows, scale_of, to_fp8


def edge_rows() -> np.ndarray:
    """4 x 32: ordinary, a single 1e4, zeros, 1e-30."""
    rows = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    rows[1] = 0
    rows[1, 5] = 1e4
    rows[2] = 0
    rows[3] = 1e-30
    return rows


def test_the_cast_saturates() -> None:
    cast = to_fp8([448, 449, 500, 1e4, -1e4, 0]).astype(np.float32)
    assert cast.tolist() == [448, 448, 448, 448, -448, 0]
    assert np.isnan(to_fp8(np.nan).astype(np.float32))  # a fault stays visible


def test_rows_of_zeros_and_of_extremes_stay_finite() -> None:
    rows = edge_rows()
    quantized = quantize_rows(rows)
    back = dequantize_rows(quantized)
    assert np.isfinite(quantized.scales).all()
    assert (quantized.scales > 0).all()
    assert np.isfinite(back).all()
    assert not back[2].any()
    assert back[1, 5] == 1e4
    np.testing.assert_allclose(back[0], rows[0], rtol=2**-4, atol=np.abs(rows[0]).max() / 448 / 2)


def test_scales() -> None:
    assert scale_of([448.0, 0.0, 1e-44]).tolist() == [1.0, 1.0, 1.0]
    assert float(scale_of(224.0)) == 0.5
