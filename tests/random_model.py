"""A small random Llama with a byte tokenizer as a version folder: its answers are right only if its K/V are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from builder.engine.byte_tokenizer import byte_tokenizer
from builder.tiny_models import LLAMA_SIZES, save_model

SIZES: dict[str, Any] = {**LLAMA_SIZES, "vocab_size": 288}


def write_random_version(folder: Path) -> tuple[Any, Path]:
    """The transformers model (the reference) and the version folder imported from it, f32."""
    from trtbuild.pipeline import import_checkpoint

    torch.set_num_threads(1)  # faster than several on a model this small
    source = folder / "checkpoint"
    model = save_model(transformers.LlamaConfig(**SIZES, eos_token_id=287, bos_token_id=287), source)
    (source / "tokenizer.json").write_text(json.dumps(byte_tokenizer()), "utf-8")
    (source / "tokenizer_config.json").write_text("{}", "utf-8")
    return model, import_checkpoint(source, folder / "model", precisions=("f32",)).version_dir
