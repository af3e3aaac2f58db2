"""Rotary frequencies from a config: plain, linear, Llama 3, YaRN, LongRoPE and factors given one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from trtdecode.errors import UnsupportedError

Frequencies = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RopeConfig:
    """How positions become angles: angle[p, i] = p * inv_freq[i]; cos and sin are scaled by `attention_factor`."""

    inv_freq: tuple[float, ...]  # rotary_dim / 2 values, float32
    attention_factor: float = 1.0
    interleaved: bool = False  # pairs are neighbours (GPT-J) instead of halves

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.inv_freq)


def rope_from_config(theta: float, rotary_dim: int, scaling: Mapping[str, Any], max_context_len: int) -> RopeConfig:
    """Frequencies for Hugging Face's `rope_parameters` (or older `rope_scaling`).

    Args:
        scaling: `rope_type` (or `type`) and its own keys; empty means none.
        max_context_len: the config's max_position_embeddings.

    Raises:
        UnsupportedError: a rope_type that is not known, listing those that are.
    """
    kind = scaling.get("rope_type", scaling.get("type", "default")) or "default"
    try:
        scale = SCALINGS[kind]
    except KeyError:
        raise UnsupportedError(f"rope_type {kind!r} is not known; known: {', '.join(sorted(SCALINGS))}") from None
    # In float32 and in this order, as transformers computes it: at position 100 000 the last bit shows.
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    plain = (1.0 / np.float32(theta) ** exponents).astype(np.float32)
    inv_freq, attention_factor = scale(plain, scaling, theta, max_context_len)
    return RopeConfig(tuple(float(value) for value in inv_freq), attention_factor)


def _default(
    plain: Frequencies, scaling: Mapping[str, Any], theta: float, max_context_len: int
) -> tuple[Frequencies, float]:
    return plain, 1.0


def _linear(
    plain: Frequencies, scaling: Mapping[str, Any], theta: float, max_context_len: int
) -> tuple[Frequencies, float]:
    return plain / np.float32(scaling["factor"]), 1.0


def _factors(
    plain: Frequencies, scaling: Mapping[str, Any], theta: float, max_context_len: int
) -> tuple[Frequencies, float]:
    """Divisors given one by one: GGUF's `rope_freqs` tensor."""
    return plain / np.asarray(scaling["factors"], np.float32), 1.0


def _llama3(
    plain: Frequencies, scaling: Mapping[str, Any], theta: float, max_context_len: int
) -> tuple[Frequencies, float]:
    """Llama 3.1: long waves are stretched, short ones kept, those between blended (transformers `rope_utils`)."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    old_len = scaling["original_max_position_embeddings"]
    wavelength = 2 * math.pi / plain
    smooth = (old_len / wavelength - low) / (high - low)
    blended = (1 - smooth) * plain / factor + smooth * plain
    stretched = np.where(wavelength > old_len / low, plain / factor, blended)
    return np.where(wavelength < old_len / high, plain, stretched).astype(np.float32), 1.0


def _yarn(
    plain: Frequencies, scaling: Mapping[str, Any], theta: float, max_context_len: int
) -> tuple[Frequencies, float]:
    """YaRN (https://arxiv.org/abs/2309.00071): interpolate slow dimensions, keep fast ones, raise the temperature."""
    dim = 2 * len(plain)
    old_len = scaling.get("original_max_position_embeddings") or max_context_len
    factor = scaling.get("factor") or max_context_len / old_len

    def dim_of(rotations: float) -> float:
        return dim * math.log(old_len / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dim_of(scaling.get("beta_fast") or 32), dim_of(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = max(high - low, 0.001)
    kept = 1 - np.clip((np.arange(dim // 2, dtype=np.float32) - low) / span, 0, 1)
    inv_freq = (plain / factor * (1 - kept) + plain * kept).astype(np.float32)
    return inv_freq, _yarn_attention_factor(scaling, factor)


def _yarn_attention_factor(scaling: Mapping[str, Any], factor: float) -> float:
    def get_scale(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and all_dim:
        return get_scale(mscale) / get_scale(all_dim)
    return get_scale(1.0)


def _longrope(
    plain: Frequencies, scaling: Mapping[str, Any], theta: float, max_context_len: int
) -> tuple[Frequencies, float]:
    """LongRoPE (https://arxiv.org/abs/2402.13753) for contexts up to the original length: the short factors.

    Texts longer than the original length need other frequencies from their first token on, which a KV cache shared
    between requests cannot have; `config.context_limit` therefore caps the context at the original length.
    """
    old_len = scaling["original_max_position_embeddings"]
    stretch = max_context_len / old_len
    attention_factor = scaling.get("attention_factor")
    if attention_factor is None:
        attention_factor = math.sqrt(1 + math.log(stretch) / math.log(old_len)) if stretch > 1 else 1.0
    return plain / np.asarray(scaling["short_factor"], np.float32), float(attention_factor)


#: LongRoPE's name now, and what Phi-3's first configs called it.
LONGROPE_NAMES = ("longrope", "su")

SCALINGS = {
    "default": _default,
    "linear": _linear,
    "factors": _factors,
    "llama3": _llama3,
    "yarn": _yarn,
    **dict.fromkeys(LONGROPE_NAMES, _longrope),
}
