"""Where a plan's model sizes come from: a version folder, a Hugging Face config.json, or a few numbers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from trtdecode.errors import ConfigError
from trtdecode.plan.capacity import Model
from trtdecode.plan.encoder_capacity import Encoder


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """The fields of a `config.json` (file, or folder that holds one), and the file's name.

    Raises:
        ConfigError: not readable, or not an object.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: not readable as a model's config.json ({error})") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: must be an object, as a model's config.json is")
    return raw, str(file)


def is_encoder(raw: dict[str, Any]) -> bool:
    """Whether a config is an encoder's, by its architectures or else its model_type."""
    names = raw.get("architectures") or [raw.get("model_type", "")]
    return any(str(name).lower().replace("-", "").startswith(_ENCODERS) for name in names)


def encoder_from_fields(raw: dict[str, Any], where: str) -> Encoder:
    """Sizes of an encoder from the fields of a config.json: BERT's, RoBERTa's or ModernBERT's.

    Raises:
        ConfigError: a size is missing or not positive.
    """
    size = partial(_size, raw, where)
    is_modern = str(raw.get("model_type", "")) == "modernbert" or "ModernBert" in str(raw.get("architectures"))
    is_roberta = "roberta" in f"{raw.get('model_type')} {raw.get('architectures')}".lower()
    positions = size("max_position_embeddings")
    labels = raw.get("id2label") or {}
    is_classifier = any("Classification" in str(name) for name in raw.get("architectures") or ())
    return Encoder(
        num_layers=size("num_hidden_layers"),
        hidden_size=size("hidden_size"),
        intermediate_size=size("intermediate_size"),
        num_heads=size("num_attention_heads"),
        vocab_size=size("vocab_size"),
        # RoBERTa's table begins with rows that no text uses: positions are counted from pad_token_id + 1.
        num_positions=positions - (int(raw.get("pad_token_id") or 0) + 1 if is_roberta else 0),
        num_table_rows=0 if is_modern else positions + size("type_vocab_size", default=1),
        num_labels=(len(labels) or int(raw.get("num_labels") or 2)) if is_classifier else 0,
        gated_mlp=is_modern,
    )


def model_from_fields(raw: dict[str, Any], where: str) -> Model:
    """Sizes from the fields of a config.json; the names are Hugging Face's, GPT-2's among them."""

    size = partial(_size, raw, where)
    hidden = size("hidden_size", "n_embd", "d_model")
    heads = size("num_attention_heads", "n_head")
    gated = not {"n_embd", "n_inner"} & raw.keys() and str(raw.get("hidden_act", "silu")) in _GATED_ACTIVATIONS
    return Model(
        num_layers=size("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        intermediate_size=size("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden),
        num_heads=heads,
        num_kv_heads=size("num_key_value_heads", default=heads),
        head_dim=size("head_dim", default=hidden // heads),
        vocab_size=size("vocab_size"),
        tied_embedding=bool(raw.get("tie_word_embeddings", "n_embd" in raw)),
        gated_mlp=gated,
    )


_GATED_ACTIVATIONS = {"silu", "swish", "gelu_pytorch_tanh", "gelu_tanh"}
#: How the names of the encoders' architectures and model types begin, in lower case and without hyphens.
_ENCODERS = ("bert", "roberta", "xlmroberta", "modernbert")


def _size(raw: dict[str, Any], where: str, *names: str, default: int | None = None) -> int:
    """The first of the fields that is given. Raises ConfigError for what is no positive integer."""
    for name in names:
        if raw.get(name) is not None:
            value = raw[name]
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{where}: {name} is {value!r}; must be a positive integer")
            return int(value)
    if default is None:
        raise ConfigError(f"{where}: none of {', '.join(names)} is given; it is needed for a plan")
    return default
