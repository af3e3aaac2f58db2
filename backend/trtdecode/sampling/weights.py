"""The arithmetic of choosing a token, such that every implementation gets the same bits.

Floating-point sums depend on their order, and `exp` on the library. Both are removed here:

- `softmax_weights` maps a scaled logit x <= 0 to round(exp(x) * 2**32), a whole number. Sums of up to 2**20 of them
  stay below 2**53, where float64 adds whole numbers exactly, in any order, vectorised or not.
- exp is a polynomial in float32 made of single IEEE operations (multiply, add, round to even; never fused).

Ranking (top-k, top-p, ties) looks at the processed logits themselves, which temperature does not reorder; of equal
logits the lowest token id ranks first. The draw walks the kept tokens in id order.

A weight of 2**-32 of the best token's rounds to zero: such tokens are never drawn.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatRow = npt.NDArray[np.float32]
WeightRow = npt.NDArray[np.float64]
IdRow = npt.NDArray[np.int64]

WEIGHT_BITS = 32
WEIGHT_ONE = float(2**WEIGHT_BITS)
MAX_VOCAB_SIZE = 2 ** (53 - 1 - WEIGHT_BITS)

MIN_X = np.float32(-23.0)  # exp(-23) * 2**32 < 0.5
LOG2_E = np.float32(1.44269504)
LN2_HIGH = np.float32(0.693359375)  # 9 bits: n * LN2_HIGH is exact for |n| < 2**15
LN2_LOW = np.float32(-2.12194440e-4)
# Cephes expf: exp(r) = 1 + r + r*r*P(r) for |r| <= ln(2)/2, relative error 2e-7.
POLYNOMIAL = tuple(
    np.float32(c) for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
)


def softmax_weights(x: FloatRow) -> WeightRow:
    """round(exp(x) * 2**32) as whole numbers in float64, for float32 x <= 0 (-inf gives 0)."""
    x = np.maximum(x, MIN_X)
    n = np.rint(x * LOG2_E)
    r = x - n * LN2_HIGH
    r = r - n * LN2_LOW
    p = np.full_like(r, POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        p = p * r + coefficient
    y = p * (r * r) + r + np.float32(1.0)
    scaled = np.ldexp(y, n.astype(np.int32) + np.int32(WEIGHT_BITS))  # exact: a power of two
    weights: WeightRow = np.rint(scaled).astype(np.float64)
    return weights


def scaled_logits(logits: FloatRow, peak: np.float32, temperature: float) -> FloatRow:
    """(logits - peak) / temperature in float32: the best token is exactly 0, and overflow is -inf, which is right."""
    with np.errstate(over="ignore"):
        return (logits - peak) / np.float32(temperature)


def leading(logits: FloatRow, count: int) -> IdRow:
    """Indices of the `count` greatest logits, greatest first; of equal ones the lowest index first."""
    size = len(logits)
    if count >= size:
        return np.argsort(-logits, kind="stable")
    threshold = np.partition(logits, size - count)[size - count]
    above = np.flatnonzero(logits > threshold)
    ties = np.flatnonzero(logits == threshold)[: count - len(above)]
    found = np.sort(np.concatenate((above, ties)))
    return found[np.argsort(-logits[found], kind="stable")]


def log_of_sum(total: float) -> float:
    """log(sum of exp) from a sum of weights."""
    return math.log(total / WEIGHT_ONE)
