"""Undoes what llama.cpp's converter does to tensors: names, row orders and folded constants.

`TensorLayout` gives, for a name in Hugging Face's naming, the GGUF tensor that holds it and the function that
restores it. Sources of the rules: llama.cpp `conversion/*.py` (`modify_tensors` of each architecture).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from gguf.tensor_mapping import get_tensor_name_map

from trtbuild.checkpoint.base import Float32

Restore = Callable[[Float32], Float32]


def unpermute_rows(rows: Float32, num_heads: int) -> Float32:
    """Restores the row order of a Q or K projection ([out, in] or a bias [out]).

    GGUF's Llama layout interleaves the two halves of each head's rotary dimensions: within a head of size D its row 2i
    is Hugging Face's row i and its row 2i+1 is row i + D/2. For K, `num_heads` is the number of KV heads.
    """
    head_dim = rows.shape[0] // num_heads
    halves = rows.reshape(num_heads, head_dim // 2, 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def unshift(rows: Float32) -> Float32:
    """Gemma's norms: llama.cpp stores w + 1, Hugging Face w."""
    return rows - np.float32(1.0)


def transpose(rows: Float32) -> Float32:
    """GPT-2's Conv1D weights: llama.cpp stores [out, in], Hugging Face [in, out]."""
    return np.ascontiguousarray(rows.T)


def _llama(name: str, config: Mapping[str, Any]) -> Restore | None:
    if ".self_attn.q_proj." in name:
        return functools.partial(unpermute_rows, num_heads=config["num_attention_heads"])
    if ".self_attn.k_proj." in name:
        return functools.partial(unpermute_rows, num_heads=config["num_key_value_heads"])
    return None


def _gemma(name: str, config: Mapping[str, Any]) -> Restore | None:
    return unshift if name.endswith(("norm.weight", "layernorm.weight")) else None


def _gpt2(name: str, config: Mapping[str, Any]) -> Restore | None:
    return transpose if re.search(r"\.(c_attn|c_proj|c_fc)\.weight$", name) else None


def _unchanged(name: str, config: Mapping[str, Any]) -> Restore | None:
    return None


@dataclass(frozen=True)
class Rules:
    """One GGUF architecture: the class name Hugging Face's config would carry, and what to undo."""

    architecture: str
    restore: Callable[[str, Mapping[str, Any]], Restore | None] = _unchanged


RULES: dict[str, Rules] = {
    "llama": Rules("LlamaForCausalLM", _llama),
    "qwen2": Rules("Qwen2ForCausalLM"),
    "qwen3": Rules("Qwen3ForCausalLM"),
    "smollm3": Rules("SmolLM3ForCausalLM", _llama),
    "phi3": Rules("Phi3ForCausalLM"),
    "gemma": Rules("GemmaForCausalLM", _gemma),
    "gemma2": Rules("Gemma2ForCausalLM", _gemma),
    "gemma3": Rules("Gemma3ForCausalLM", _gemma),
    "gpt2": Rules("GPT2LMHeadModel", _gpt2),
}


class TensorLayout:
    """Maps Hugging Face names to GGUF tensors for one file."""

    def __init__(self, architecture: str, config: Mapping[str, Any]) -> None:
        arch_ids = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
        num_layers = config["n_layer"] if "n_layer" in config else config["num_hidden_layers"]
        self._names = get_tensor_name_map(arch_ids[architecture], num_layers)
        self._rules = RULES[architecture]
        self._config = config

    def gguf_name(self, name: str) -> str:
        """The GGUF tensor that holds `name`; `name` itself where no rule knows it (then it will be missing)."""
        found = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        return name if found is None else str(found)

    def restore(self, name: str) -> Restore | None:
        """What turns the stored tensor into Hugging Face's, or None where they are equal."""
        return self._rules.restore(name, self._config)

    def reorders_rows(self, name: str) -> bool:
        """Whether `restore` only moves whole rows, so that it can be applied to codes and scales alike."""
        return isinstance(self.restore(name), functools.partial)
