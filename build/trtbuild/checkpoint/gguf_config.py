"""GGUF metadata -> the config.json that Hugging Face would have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.gguf_layout import ARCHITECTURES

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
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("rope.freq_base", "rope_theta"),
    ("vocab_size", "vocab_size"),
)


class Metadata:
    """Typed access to one file's metadata under its architecture's prefix."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self.values = values
        self.architecture = str(self._required("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `<architecture>.<key>`."""
        return self.values.get(f"{self.architecture}.{key}", default)

    def _required(self, key: str) -> Any:
        try:
            return self.values[key]
        except KeyError:
            raise CheckpointError(f"{self.path}: metadata key {key!r} is missing; the file is not a model") from None


def config_from_metadata(
    meta: Metadata, vocab_rows: int, has_head: bool, rope_factors: list[float] | None
) -> dict[str, Any]:
    """Hugging Face's config for a GGUF file.

    Args:
        vocab_rows: rows of the embedding: GGUF does not always carry vocab_size.
        has_head: the file holds an output matrix of its own.
        rope_factors: the file's `rope_freqs` tensor (Llama 3): divisors of the rotary frequencies.

    Raises:
        CheckpointError: unknown architecture (those known are listed) or a key missing.
    """
    if meta.architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"{meta.path}: architecture {meta.architecture!r} is not known; "
            f"known in GGUF: {', '.join(sorted(ARCHITECTURES))}"
        )
    config: dict[str, Any] = {"architectures": [ARCHITECTURES[meta.architecture]], "tie_word_embeddings": not has_head}
    for key, name in _COMMON:
        value = meta.get(key)
        if value is not None:
            config[name] = value
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    config["vocab_size"] = vocab_rows
    scaling = _rope_scaling(meta, rope_factors)
    if scaling:
        config["rope_scaling"] = scaling
    for key, name in (
        ("bos_token_id", "bos_token_id"),
        ("eos_token_id", "eos_token_id"),
        ("eot_token_id", "eot_token_id"),
    ):
        value = meta.values.get(f"tokenizer.ggml.{key}")
        if value is not None:
            config[name] = value
    _join_end_of_turn(config)
    return config


def _join_end_of_turn(config: dict[str, Any]) -> None:
    """GGUF tells the end of a turn apart from the end of a text; both end generation."""
    turn = config.pop("eot_token_id", None)
    if turn is not None and turn != config.get("eos_token_id"):
        config["eos_token_id"] = [value for value in (config.get("eos_token_id"), turn) if value is not None]


def _rope_scaling(meta: Metadata, factors: list[float] | None) -> dict[str, Any] | None:
    if factors is not None:
        return {"rope_type": "factors", "factors": factors}
    kind = meta.get("rope.scaling.type")
    if kind in (None, "none"):
        return None
    scaling = {
        "rope_type": kind,
        "factor": meta.get("rope.scaling.factor", 1.0),
        "original_max_position_embeddings": meta.get("rope.scaling.original_context_length"),
        "attention_factor": meta.get("rope.scaling.attn_factor"),
    }
    return {key: value for key, value in scaling.items() if value is not None}
