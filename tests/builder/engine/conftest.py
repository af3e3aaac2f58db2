"""A whole model version in small: a two-layer Llama with a tied embedding and a byte tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from builder.engine.byte_tokenizer import byte_tokenizer
from trtbuild.pipeline import import_checkpoint

#: Widths in whole INT4 groups, and no two alike.
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 128, 192, 4, 2, 32, 320, 2

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def tiny_weights() -> dict[str, np.ndarray]:
    """Seeded weights in Hugging Face's names, large enough that every part matters."""
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * scale * columns**-0.5).astype(np.float32)

    def norm() -> np.ndarray:
        return random.uniform(0.5, 1.5, HIDDEN).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN, 3.0), "model.norm.weight": norm()}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        weights |= {
            f"{name}.input_layernorm.weight": norm(),
            f"{name}.self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
            f"{name}.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{name}.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{name}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
            f"{name}.post_attention_layernorm.weight": norm(),
            f"{name}.mlp.gate_proj.weight": matrix(INNER, HIDDEN),
            f"{name}.mlp.up_proj.weight": matrix(INNER, HIDDEN),
            f"{name}.mlp.down_proj.weight": matrix(HIDDEN, INNER),
        }
    return weights


def tiny_checkpoint(folder: Path) -> Path:
    """Writes the tiny model as a Hugging Face folder."""
    folder.mkdir()
    safetensors.numpy.save_file(tiny_weights(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture(scope="session")
def tiny_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The imported version; tests that write copy it."""
    folder = tmp_path_factory.mktemp("tiny")
    import_checkpoint(tiny_checkpoint(folder / "checkpoint"), folder / "model", precisions=("f32",))
    return folder / "model" / "1"


@pytest.fixture
def tiny_version(tiny_template: Path, tmp_path: Path) -> Path:
    """A copy of the tiny version, without engines."""
    return Path(shutil.copytree(tiny_template, tmp_path / "model" / "1"))
