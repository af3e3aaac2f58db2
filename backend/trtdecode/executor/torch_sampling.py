"""The sampler's arithmetic in torch operators: tokens are chosen where the logits are, and only ids come to the host.

Bit for bit what `sampling/` computes: the weights are whole numbers made of single IEEE operations (`weights.py` there
says how), so that neither the order of a sum nor the device matters; the random numbers are Philox's (`philox.py`).
Nothing here reads a value on the host, so all of it can be captured as a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trtdecode.executor.base import SAMPLING_ROW
from trtdecode.sampling.philox import MULTIPLIERS, ROUNDS, WEYL
from trtdecode.sampling.stages import NOT_FINITE
from trtdecode.sampling.weights import LN2_HIGH, LN2_LOW, LOG2_E, MIN_X, POLYNOMIAL, WEIGHT_BITS

#: Rows worked on at a time: bounds the scratch memory, of about 70 bytes a logit.
ROWS_AT_ONCE = 16

_MASK = 0xFFFFFFFF
_FLOAT_EXPONENT_BIAS, _FLOAT_MANTISSA_BITS = 127, 23
_TORCH_TYPES = {"u8": torch.int64, "i8": torch.int64, "f8": torch.float64, "f4": torch.float32}

Fields = dict[str, Tensor]


def fields_of(rows: Tensor) -> Fields:
    """The fields of `SAMPLING_ROW` records, u8 [S, bytes], as views [S, 1]; seeds as the i64 of the same bits."""
    assert SAMPLING_ROW.fields is not None
    views = {}
    for name, (dtype, offset, *_) in SAMPLING_ROW.fields.items():
        views[name] = rows[:, offset : offset + dtype.itemsize].view(_TORCH_TYPES[dtype.str[1:]])
    return views


def choose(logits: Tensor, argmax: Tensor, fields: Fields) -> Tensor:
    """Token ids i64 [S], or NOT_FINITE for a row that holds NaN or no finite maximum.

    Args:
        logits: f32 [S, V].
        argmax: i64 [S], what greedy rows (temperature 0) get.
    """
    parts = []
    for begin in range(0, logits.shape[0], ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        parts.append(_choose(logits[part], argmax[part], {name: field[part] for name, field in fields.items()}))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _choose(logits: Tensor, argmax: Tensor, fields: Fields) -> Tensor:
    temperature = fields["temperature"]
    greedy = temperature == 0
    peak = logits.amax(dim=1, keepdim=True)  # NaN if there is one
    scaled = (logits - peak) / torch.where(greedy, 1.0, temperature)
    weights = softmax_weights(scaled)
    kept = _kept(logits, scaled, weights, fields)
    through = torch.where(kept, weights, 0.0).cumsum(dim=1)
    total = through[:, -1:]
    target = torch.minimum(torch.floor(uniform(fields) * total), total - 1.0)
    drawn = (through <= target).sum(dim=1)
    chosen = torch.where(greedy[:, 0], argmax, drawn)
    return torch.where(torch.isfinite(peak[:, 0]), chosen, NOT_FINITE)


def _kept(logits: Tensor, scaled: Tensor, weights: Tensor, fields: Fields) -> Tensor:
    """bool [S, V]: what min-p, then top-k, then top-p leave. Each keeps a prefix of the ranking."""
    # Adding 0 makes -0 equal to 0 for every way of sorting; a stable sort ranks equal logits by id.
    order = (logits + 0.0).sort(dim=1, descending=True, stable=True).indices
    ranks = torch.arange(logits.shape[1], device=logits.device)[None]
    top_k = fields["top_k"]
    leading = (scaled.gather(1, order) >= fields["min_p_limit"]) & ((ranks < top_k) | (top_k <= 0))
    ranked = torch.where(leading, weights.gather(1, order), 0.0)
    through = ranked.cumsum(dim=1)
    top_p = fields["top_p"]
    leading &= (through - ranked < top_p * through[:, -1:]) | (top_p >= 1.0)
    return torch.zeros_like(leading).scatter(1, order, leading)


def softmax_weights(x: Tensor) -> Tensor:
    """`sampling.weights.softmax_weights`: round(exp(x) * 2**32) in f64, for f32 x <= 0."""
    x = x.clamp_min(float(MIN_X))
    n = (x * float(LOG2_E)).round()
    r = x - n * float(LN2_HIGH)
    r = r - n * float(LN2_LOW)
    p = torch.full_like(r, float(POLYNOMIAL[0]))
    for coefficient in POLYNOMIAL[1:]:
        p = p * r + float(coefficient)
    y = p * (r * r) + r + 1.0
    exponent = n.to(torch.int32) + (WEIGHT_BITS + _FLOAT_EXPONENT_BIAS)
    power = (exponent << _FLOAT_MANTISSA_BITS).view(torch.float32)  # 2 ** (n + 32), so the product is exact
    return (y * power).round().double()


def uniform(fields: Fields) -> Tensor:
    """`sampling.philox.uniform` for each row: f64 [S, 1] in [0, 1)."""
    seed = fields["seed"]
    c0, c1 = fields["position"] & _MASK, fields["sample_index"] & _MASK
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(ROUNDS):
        high0, low0 = _product(MULTIPLIERS[0], c0)
        high1, low1 = _product(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return ((c0 >> 5) * 67108864 + (c1 >> 6)).double() / 9007199254740992.0


def _product(factor: int, words: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of factor * words, 32-bit words in i64: by halves, so that nothing overflows."""
    low_half, high_half = (words & 0xFFFF) * factor, (words >> 16) * factor
    upper = high_half + (low_half >> 16)
    return upper >> 16, ((upper & 0xFFFF) << 16) | (low_half & 0xFFFF)
