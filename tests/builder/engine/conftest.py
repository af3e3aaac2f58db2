"""A whole model version in small: a two-layer Llama with a tied embedding and a byte tokenizer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builder.engine.byte_tokenizer import byte_tokenizer
from builder.tiny_models import save_model
from trtbuild.pipeline import import_checkpoint

os.environ.setdefault("OMP_NUM_THREADS", "1")

#: Widths in whole INT4 groups, and no two alike.
TINY_SIZES = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="session")
def tiny_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The imported version; tests copy it."""
    import transformers

    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = folder / "checkpoint"
    save_model(transformers.LlamaConfig(**TINY_SIZES), checkpoint)
    (checkpoint / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    (checkpoint / "tokenizer_config.json").write_text("{}")
    import_checkpoint(checkpoint, folder / "model", precisions=("f32",))
    return folder / "model" / "1"


@pytest.fixture
def tiny_version(tiny_template: Path, tmp_path: Path) -> Path:
    """A copy of the tiny version, without engines."""
    return Path(shutil.copytree(tiny_template, tmp_path / "model" / "1"))


@pytest.fixture(scope="session")
def tiny_copy(tiny_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Copies for tests that want several."""
    return lambda: Path(shutil.copytree(tiny_template, tmp_path_factory.mktemp("copy") / "1"))
