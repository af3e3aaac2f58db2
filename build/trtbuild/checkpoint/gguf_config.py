"""GGUF metadata -> the config.json that Hugging Face would have written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.gguf_layout import RULES

Config = dict[str, Any]

#: (metadata key after the architecture's prefix, config key); absent ones are left out.
_COMMON = (
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("rope.freq_base", "rope_theta"),
)

_GPT2 = (
    ("block_count", "n_layer"),
    ("context_length", "n_positions"),
    ("embedding_length", "n_embd"),
    ("feed_forward_length", "n_inner"),
    ("attention.head_count", "n_head"),
    ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
)

_TOKENS = ("bos_token_id", "eos_token_id")


class Metadata:
    """Typed access to one file's metadata under its architecture's prefix."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self.values = values
        if "general.architecture" not in values:
            raise CheckpointError(f"{path}: metadata key 'general.architecture' is missing; the file is not a model")
        self.architecture = str(values["general.architecture"])
        if self.architecture not in RULES:
            raise CheckpointError(
                f"{path}: architecture {self.architecture!r} is not known; known in GGUF: {', '.join(sorted(RULES))}"
            )

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `<architecture>.<key>`."""
        return self.values.get(f"{self.architecture}.{key}", default)

    def pick(self, keys: tuple[tuple[str, str], ...]) -> Config:
        """The keys that are there, under their new names."""
        return {name: self.get(key) for key, name in keys if self.get(key) is not None}


def config_from_metadata(meta: Metadata, vocab_rows: int, has_head: bool, factors: dict[str, list[float]]) -> Config:
    """Hugging Face's config for a GGUF file.

    Args:
        vocab_rows: rows of the embedding: GGUF does not always carry vocab_size.
        has_head: the file holds an output matrix of its own.
        factors: the file's rotary tensors: "freqs" (Llama 3), or "short" and "long" (Phi 3).
    """
    config: Config = {
        "architectures": [RULES[meta.architecture].architecture],
        "tie_word_embeddings": not has_head,
        **meta.pick(_GPT2 if meta.architecture == "gpt2" else _COMMON),
        "vocab_size": vocab_rows,
    }
    if meta.architecture != "gpt2":
        config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    scaling = _rope_scaling(meta, factors)
    if scaling:
        config["rope_scaling"] = scaling
    for key in _TOKENS:
        if meta.values.get(f"tokenizer.ggml.{key}") is not None:
            config[key] = meta.values[f"tokenizer.ggml.{key}"]
    _join_end_of_turn(config, meta.values.get("tokenizer.ggml.eot_token_id"))
    adjust = _ADJUST.get(meta.architecture)
    return config if adjust is None else adjust(config)


def _join_end_of_turn(config: Config, turn: int | None) -> None:
    """GGUF tells the end of a turn apart from the end of a text; both end generation."""
    if turn is not None and turn != config.get("eos_token_id"):
        config["eos_token_id"] = [value for value in (config.get("eos_token_id"), turn) if value is not None]


def _rope_scaling(meta: Metadata, factors: dict[str, list[float]]) -> Config | None:
    if "freqs" in factors:
        return {"rope_type": "factors", "factors": factors["freqs"]}
    scaling = {
        "factor": meta.get("rope.scaling.factor"),
        "original_max_position_embeddings": meta.get("rope.scaling.original_context_length"),
        "attention_factor": meta.get("rope.scaling.attn_factor"),
    }
    present = {key: value for key, value in scaling.items() if value is not None}
    if "short" in factors:
        return {"rope_type": "longrope", "short_factor": factors["short"], **present}
    kind = meta.get("rope.scaling.type")
    return None if kind in (None, "none") else {"rope_type": kind, **present}


def _phi3(config: Config) -> Config:
    """llama.cpp writes a window for every Phi-3, as wide as the context where the model has none."""
    if config.get("sliding_window", 0) >= config["max_position_embeddings"]:
        del config["sliding_window"]
    return config


def _gemma2(config: Config) -> Config:
    """The scale of q . k is not in the file: llama.cpp takes 1 / sqrt(head_dim), but for the 27B (46 layers)."""
    return _scale_of_queries(config, large=46)


def _gemma3(config: Config) -> Config:
    """As Gemma 2 (27B: 62 layers); sliding layers rotate with theta 10 000, which the file does not say either."""
    return {**_scale_of_queries(config, large=62), "rope_local_base_freq": 10000.0}


def _scale_of_queries(config: Config, large: int) -> Config:
    by_width = config["hidden_size"] // config["num_attention_heads"]
    scalar = by_width if config["num_hidden_layers"] == large else config["head_dim"]
    return {**config, "query_pre_attn_scalar": scalar}


_ADJUST: dict[str, Callable[[Config], Config]] = {"phi3": _phi3, "gemma2": _gemma2, "gemma3": _gemma3}
