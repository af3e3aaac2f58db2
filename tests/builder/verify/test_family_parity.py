"""Every decoder family against transformers on the same random weights: prefill, ragged batches, cached decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import transformers
from builder.tiny_models import LLAMA_SIZES, model_greedy, model_logits, random_prompt, save_model
from conformance.driver import Driver
from trtbuild.checkpoint import open_checkpoint
from trtbuild.graph.author import author_graph
from trtbuild.graph.check import check_graph
from trtdecode.executor.torch_executor import TorchExecutor

POOL_BYTES = 1 << 22


def _llama(**changes: Any) -> transformers.PretrainedConfig:
    return transformers.LlamaConfig(**{**LLAMA_SIZES, **changes})


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}

CONFIGS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "llama": _llama,
    "llama-tied": lambda: _llama(tie_word_embeddings=True),
    "llama-mha": lambda: _llama(num_key_value_heads=6),
    "llama-mqa": lambda: _llama(num_key_value_heads=1),
    "llama-head-dim": lambda: _llama(head_dim=24),
    "llama-bias": lambda: _llama(attention_bias=True, mlp_bias=True),
    "llama3-rope": lambda: _llama(rope_parameters=LLAMA3_ROPE),
    "linear-rope": lambda: _llama(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}),
    "yarn-rope": lambda: _llama(rope_parameters=YARN_ROPE),
    "mistral-window": lambda: transformers.MistralConfig(**LLAMA_SIZES, sliding_window=5),
    "mistral-full": lambda: transformers.MistralConfig(**LLAMA_SIZES, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**LLAMA_SIZES),
    "qwen2-mixed-windows": lambda: transformers.Qwen2Config(
        **LLAMA_SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "qwen2-window-off": lambda: transformers.Qwen2Config(**LLAMA_SIZES, use_sliding_window=False, sliding_window=4),
}


@dataclass
class Pair:
    """The same weights on both sides."""

    model: Any
    driver: Driver
    vocab_size: int


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    config = CONFIGS[request.param]()
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(config, folder / "checkpoint")
    graph = folder / "decoder.onnx"
    author_graph(open_checkpoint(folder / "checkpoint"), graph, "f32")
    check_graph(graph, config.num_hidden_layers)
    return Pair(model, Driver(TorchExecutor(graph, kv_cache_bytes=POOL_BYTES)), config.vocab_size)


def test_logits_of_a_ragged_batch(pair: Pair) -> None:
    prompts = [random_prompt(length, pair.vocab_size) for length in (1, 9, 37)]
    sequences = [pair.driver.sequence(prompt) for prompt in prompts]
    got = pair.driver.step(*((seq, len(seq.tokens)) for seq in sequences), every_row=True)
    wanted = np.concatenate([model_logits(pair.model, prompt) for prompt in prompts])
    assert np.abs(wanted).max() > 1.0
    assert np.abs(got - wanted).max() < 1e-3


def test_logits_of_chunked_prefill(pair: Pair) -> None:
    prompt = random_prompt(29, pair.vocab_size)
    got = pair.driver.prefill(pair.driver.sequence(prompt), chunk=6)
    assert np.abs(got - model_logits(pair.model, prompt)).max() < 1e-3


def test_32_greedy_tokens_decoded_together(pair: Pair) -> None:
    prompts = [random_prompt(length, pair.vocab_size, seed=1) for length in (3, 11)]
    sequences = [pair.driver.sequence(prompt, room=32) for prompt in prompts]
    assert pair.driver.greedy(sequences, 32) == [model_greedy(pair.model, prompt, 32) for prompt in prompts]
