"""Where a plan's model sizes come from: a version folder, a Hugging Face config.json, or a few numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtdecode.errors import ConfigError
from trtdecode.plan.capacity import Model


def model_from_config(path: Path) -> Model:
    """Sizes from a `config.json` (file, or folder that holds one).

    Raises:
        ConfigError: not readable, or a size is missing.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        raw: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"{file}: not readable as a model's config.json ({error})") from error
    return model_from_fields(raw, str(file))


def model_from_fields(raw: dict[str, Any], where: str) -> Model:
    """Sizes from the fields of a config.json; the names are Hugging Face's, GPT-2's among them."""

    def size(*names: str, default: int | None = None) -> int:
        for name in names:
            if raw.get(name) is not None:
                value = raw[name]
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise ConfigError(f"{where}: {name} is {value!r}; must be a positive integer")
                return int(value)
        if default is None:
            raise ConfigError(f"{where}: none of {', '.join(names)} is given; it is needed for a plan")
        return default

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
