"""SmoothQuant: moves the spread of activations into weights before INT8, per input channel of a matmul.

https://arxiv.org/abs/2211.10438, equation 4: s_j = max|x_j|^a / max|w_j|^(1 - a), x' = x / s, W' = W s.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]


def smoothing_factors(input_absmax: Float32, weight_absmax: Float32, strength: float = 0.5) -> Float32:
    """Factors s, f32[in], all positive.

    Args:
        input_absmax: largest magnitude of each input channel over the calibration text.
        weight_absmax: largest magnitude of each input channel over the output channels.
        strength: a; 0 leaves everything to the activations, 1 moves it all to the weights.

    A channel whose inputs or weights are all zero has factor 1: there is nothing to move.
    """
    live = (input_absmax > 0) & (weight_absmax > 0)
    factors = np.ones(len(input_absmax), np.float32)
    factors[live] = input_absmax[live] ** strength / weight_absmax[live] ** (1 - strength)
    return factors
