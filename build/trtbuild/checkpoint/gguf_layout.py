"""Undoes what llama.cpp's converter does to tensors: names, row orders and folded constants.

`TensorLayout` gives, for a name in Hugging Face's naming, the GGUF tensor that holds it and the function that
restores it. Sources of the rules: llama.cpp `conversion/*.py` (`modify_tensors` of each architecture).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gguf
from gguf.tensor_mapping import get_tensor_name_map

from trtbuild.checkpoint.base import Float32

Restore = Callable[[Float32], Float32]

#: GGUF architecture -> the class name Hugging Face's config would carry.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
}


def unpermute_rows(rows: Float32, num_heads: int) -> Float32:
    """Restores the row order of a Q or K projection ([out, in] or a bias [out]).

    GGUF's Llama layout interleaves the two halves of each head's rotary dimensions: within a head of size D its row 2i
    is Hugging Face's row i and its row 2i+1 is row i + D/2. For K, `num_heads` is the number of KV heads.
    """
    head_dim = rows.shape[0] // num_heads
    halves = rows.reshape(num_heads, head_dim // 2, 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _restore_llama(name: str, config: dict[str, Any]) -> Restore | None:
    if ".self_attn.q_proj." in name:
        return functools.partial(unpermute_rows, num_heads=config["num_attention_heads"])
    if ".self_attn.k_proj." in name:
        return functools.partial(unpermute_rows, num_heads=config["num_key_value_heads"])
    return None


RESTORE: dict[str, Callable[[str, dict[str, Any]], Restore | None]] = {
    "llama": _restore_llama,
}


class TensorLayout:
    """Maps Hugging Face names to GGUF tensors for one file."""

    def __init__(self, architecture: str, config: dict[str, Any]) -> None:
        arch_ids = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
        self._names = get_tensor_name_map(arch_ids[architecture], config["num_hidden_layers"])
        self._restore = RESTORE.get(architecture)
        self._config = config

    def gguf_name(self, name: str) -> str:
        """The GGUF tensor that holds `name`; `name` itself where no rule knows it (then it will be missing)."""
        found = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        return name if found is None else str(found)

    def restore(self, name: str) -> Restore | None:
        """What turns the stored tensor into Hugging Face's, or None where they are equal."""
        return None if self._restore is None else self._restore(name, self._config)
