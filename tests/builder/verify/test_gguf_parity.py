"""Every GGUF architecture: a tiny model written as llama.cpp would, imported, against transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers
from builder.family_configs import LLAMA3_ROPE, gemma, gpt2, llama
from builder.gguf_writer import gguf_metadata, gguf_tensors, llama_metadata, llama_tensors, write_gguf
from builder.tiny_models import LLAMA_SIZES, make_model, model_logits, random_prompt
from conformance.driver import Driver
from trtbuild.checkpoint import open_checkpoint
from trtbuild.checkpoint.gguf_layout import RULES
from trtbuild.graph.author import author_graph
from trtbuild.graph.rope_frequencies import rope_from_config
from trtdecode.executor.torch_executor import TorchExecutor

MODELS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "qwen2": lambda: transformers.Qwen2Config(**LLAMA_SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**LLAMA_SIZES, head_dim=24),
    "smollm3": lambda: transformers.SmolLM3Config(**{**LLAMA_SIZES, "num_hidden_layers": 5}, eos_token_id=3),
    "phi3": lambda: transformers.Phi3Config(**LLAMA_SIZES, sliding_window=7),
    "gemma": lambda: gemma(transformers.GemmaConfig),
    "gemma2": lambda: gemma(transformers.Gemma2Config, sliding_window=5, query_pre_attn_scalar=24),
    "gemma3": lambda: gemma(
        transformers.Gemma3TextConfig, num_hidden_layers=7, sliding_window=5, query_pre_attn_scalar=24
    ),
    "gpt2": gpt2,
}


def imported_logits(path: Path, prompt: list[int]) -> np.ndarray:
    author_graph(open_checkpoint(path), path.with_suffix(".onnx"), "f32")
    driver = Driver(TorchExecutor(path.with_suffix(".onnx"), kv_cache_bytes=1 << 22))
    return driver.prefill(driver.sequence(prompt))


@pytest.mark.parametrize("architecture", MODELS)
def test_logits(architecture: str, tmp_path: Path) -> None:
    model = make_model(MODELS[architecture]())
    metadata = gguf_metadata(model.config, architecture)
    path = write_gguf(tmp_path / "m.gguf", metadata, gguf_tensors(model, architecture), architecture=architecture)
    prompt = random_prompt(29, model.config.vocab_size)
    wanted = model_logits(model, prompt)
    assert np.abs(imported_logits(path, prompt) - wanted).max() < 1e-3


@pytest.mark.parametrize("rope", [None, LLAMA3_ROPE])
def test_llama_with_and_without_rope_factors(rope: dict[str, object] | None, tmp_path: Path) -> None:
    """Llama 3's scaling reaches a GGUF file as divisors, one a frequency."""
    model = make_model(llama(rope_parameters=rope) if rope else llama())
    tensors = llama_tensors(model)
    if rope:
        plain = np.array(rope_from_config(10000.0, 16, {}, 256).inv_freq)
        scaled = np.array(rope_from_config(10000.0, 16, rope, 256).inv_freq)
        tensors["rope_freqs.weight"] = (plain / scaled).astype(np.float32)
    path = write_gguf(tmp_path / "m.gguf", llama_metadata(model.config), tensors)
    prompt = random_prompt(29, 131)
    assert np.abs(imported_logits(path, prompt) - model_logits(model, prompt)).max() < 1e-3


def test_every_architecture_is_compared() -> None:
    assert set(RULES) == {"llama", *MODELS}
