"""Every decoder family against transformers on the same random weights: prefill, ragged batches, cached decode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from builder.family_configs import CONFIGS
from builder.tiny_models import model_greedy, model_logits, random_prompt, save_model
from conformance.driver import Driver
from trtbuild.checkpoint import open_checkpoint
from trtbuild.graph.author import author_graph, config_of
from trtbuild.graph.check import check_graph
from trtbuild.graph.registry import FAMILIES, family_of
from trtdecode.errors import UnsupportedError
from trtdecode.executor.openvino_executor import OpenVinoExecutor
from trtdecode.executor.torch_executor import TorchExecutor

POOL_BYTES = 1 << 22


@dataclass
class Pair:
    """The same weights on both sides."""

    model: Any
    graph: Path
    driver: Driver
    vocab_size: int


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    config = CONFIGS[request.param]()
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(config, folder / "checkpoint")
    graph = folder / "decoder.onnx"
    checkpoint = open_checkpoint(folder / "checkpoint")
    author_graph(checkpoint, graph, "f32")
    check_graph(graph, config_of(checkpoint).spec)
    return Pair(model, graph, Driver(TorchExecutor(graph, kv_cache_bytes=POOL_BYTES)), config.vocab_size)


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


def test_openvino_computes_the_same(pair: Pair) -> None:
    try:
        executor = OpenVinoExecutor(pair.graph, kv_cache_bytes=POOL_BYTES)
    except UnsupportedError as error:
        pytest.skip(str(error))
    driver = Driver(executor)
    prompts = [random_prompt(length, pair.vocab_size) for length in (1, 9, 37)]
    work = [(driver.sequence(prompt), len(prompt)) for prompt in prompts]
    got = driver.step(*work, every_row=True)
    wanted = np.concatenate([model_logits(pair.model, prompt) for prompt in prompts])
    assert np.abs(got - wanted).max() < 1e-3
    executor.close()


def test_32_greedy_tokens_decoded_together(pair: Pair) -> None:
    prompts = [random_prompt(length, pair.vocab_size, seed=1) for length in (3, 11)]
    sequences = [pair.driver.sequence(prompt, room=32) for prompt in prompts]
    assert pair.driver.greedy(sequences, 32) == [model_greedy(pair.model, prompt, 32) for prompt in prompts]


def test_every_family_of_the_registry_is_compared() -> None:
    compared = {name for make in CONFIGS.values() for name in (family_of(_architecture(make())).name,)}
    assert compared == {family.name for family in FAMILIES}


def _architecture(config: Any) -> dict[str, list[str]]:
    return {"architectures": [type(transformers.AutoModelForCausalLM.from_config(config)).__name__]}
