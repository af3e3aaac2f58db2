"""INT4 groups, AWQ's scales and GPTQ: exact small cases, edge cases (CASES C46), and that each beats the one before."""

from __future__ import annotations

import numpy as np
import pytest
from trtbuild.quantize.gptq import gptq_quantize
from trtbuild.quantize.int4 import awq_scales, dequantize_groups, group_scales, group_size_for, quantize_groups
from trtdecode.errors import BuildError


@pytest.mark.parametrize(
    ("columns", "size"),
    [(4096, 128), (256, 128), (576, 64), (128, 64), (192, 64), (160, 32), (96, 32), (32, None), (100, None)],
)
def test_group_size(columns: int, size: int | None) -> None:
    assert group_size_for(columns) == size


def test_codes_of_a_group_by_hand() -> None:
    quantized = quantize_groups(np.array([[7.0, -8.0, 0.4, 0.6]], np.float32), 4)
    assert quantized.scales.tolist() == [[1.0]]
    assert quantized.codes.tolist() == [[7, -8, 0, 1]]
    # The side that needs more room decides: -16 at code -8, or 14 at code 7.
    assert group_scales(np.array([[14.0, -8.0]], np.float32), 2).tolist() == [[2.0]]
    assert group_scales(np.array([[7.0, -16.0]], np.float32), 2).tolist() == [[2.0]]


def test_zeros_and_extremes_stay_finite() -> None:
    rows = np.zeros((4, 32), np.float32)
    rows[0] = np.linspace(-1, 1, 32)
    rows[2] = 1e-30
    rows[3, 9] = 1e4
    quantized = quantize_groups(rows, 16)
    back = dequantize_groups(quantized)
    assert np.isfinite(quantized.scales).all()
    assert (quantized.scales > 0).all()
    assert not back[1].any()
    assert back[3, 9] == pytest.approx(1e4)
    assert np.abs(back[0] - rows[0]).max() <= quantized.scales[0].max() / 2 + 1e-7


@pytest.fixture(scope="module")
def layer() -> tuple[np.ndarray, np.ndarray]:
    """Weights [48, 128] and correlated inputs [400, 128] with a few loud channels, as in language models."""
    random = np.random.default_rng(1)
    weights = random.standard_normal((48, 128)).astype(np.float32)
    mixing = random.standard_normal((32, 128)).astype(np.float32)
    inputs = random.standard_normal((400, 32)).astype(np.float32) @ mixing
    inputs[:, ::17] *= 12
    return weights, inputs


def output_error(weights: np.ndarray, inputs: np.ndarray, approximate: np.ndarray) -> float:
    return float(np.square(inputs @ (approximate - weights).T).mean() / np.square(inputs @ weights.T).mean())


def test_awq_and_gptq_beat_rounding(layer: tuple[np.ndarray, np.ndarray]) -> None:
    weights, inputs = layer
    rounded = output_error(weights, inputs, dequantize_groups(quantize_groups(weights, 64)))
    factors = awq_scales(weights, inputs, 64)
    balanced = output_error(weights, inputs, dequantize_groups(quantize_groups(weights * factors, 64)) / factors)
    hessian = inputs.T @ inputs
    corrected = output_error(weights, inputs, dequantize_groups(gptq_quantize(weights, hessian, 64)))
    ordered = output_error(weights, inputs, dequantize_groups(gptq_quantize(weights, hessian, 64, act_order=True)))
    assert balanced < 0.7 * rounded
    assert corrected < 0.5 * rounded
    assert ordered < 0.5 * rounded


def test_awq_takes_the_best_of_its_candidates() -> None:
    """Against the errors of the quantised weights themselves, over more output channels than are searched at a time."""
    random = np.random.default_rng(2)
    weights = random.standard_normal((600, 128)).astype(np.float32)
    inputs = (random.standard_normal((64, 128)) * np.exp(random.standard_normal(128))).astype(np.float32)
    errors, candidates = [], []
    for step in range(10):
        factors = np.abs(inputs).mean(axis=0) ** np.float32(step / 10)
        factors /= np.sqrt(factors.max() * factors.min())
        candidates.append(factors)
        approximate = dequantize_groups(quantize_groups(weights * factors, 64)) / factors
        errors.append(output_error(weights, inputs, approximate))
    best = int(np.argmin(errors))
    assert 0 < best < 9
    np.testing.assert_allclose(awq_scales(weights, inputs, 64), candidates[best], rtol=1e-6)


def test_gptq_without_correlation_is_rounding(layer: tuple[np.ndarray, np.ndarray]) -> None:
    """With a diagonal Hessian there is no other column to spread an error over."""
    weights, _ = layer
    for act_order in (False, True):
        quantized = gptq_quantize(weights, np.eye(128, dtype=np.float32), 64, act_order=act_order)
        assert (quantized.codes == quantize_groups(weights, 64).codes).all()


def test_channels_that_were_never_used(layer: tuple[np.ndarray, np.ndarray]) -> None:
    weights, inputs = layer
    inputs = inputs.copy()
    inputs[:, 5] = 0
    quantized = gptq_quantize(weights, inputs.T @ inputs, 64)
    assert np.isfinite(dequantize_groups(quantized)).all()
    assert awq_scales(weights, inputs, 64)[5] > 0
    assert (awq_scales(weights, np.zeros_like(inputs), 64) == 1).all()
    assert np.isfinite(dequantize_groups(gptq_quantize(weights, np.zeros((128, 128), np.float32), 64))).all()


def test_a_hessian_that_overflowed_is_refused(layer: tuple[np.ndarray, np.ndarray]) -> None:
    hessian = np.eye(128, dtype=np.float32)
    hessian[3, 3] = np.inf
    with pytest.raises(BuildError, match="the Hessian is not finite"):
        gptq_quantize(layer[0], hessian, 64)
