"""The real model: SmolLM2-135M from its GGUF through our graphs, against transformers on the same file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from conformance.driver import Driver
from trtbuild.pipeline import import_checkpoint
from trtbuild.verify.parity import compare_logits, graph_logits, sample_prompts, verify_version
from trtdecode.executor.base import Executor
from trtdecode.executor.openvino_executor import OpenVinoExecutor
from trtdecode.executor.torch_executor import TorchExecutor
from trtdecode.manifest import read_manifest

pytestmark = pytest.mark.slow

POOL_BYTES = 1 << 27
NUM_GREEDY = 64
PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child.",
    "List three prime numbers above 100.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Hamlet?",
    "def quicksort(items):",
    "Why is the sky blue?",
    "Name a mammal that lays eggs.",
    "What is 17 times 23?",
    "Tell me a short story about a lighthouse keeper.",
    "Summarise the plot of Romeo and Juliet.",
    "How do vaccines work?",
    "Give me a recipe for pancakes.",
    "What does HTTP stand for?",
    "Describe the water cycle.",
    "Write a polite email that declines an invitation.",
    "What are the three laws of motion?",
    "Suggest a name for a black cat.",
    "Is a tomato a fruit?",
)


@pytest.fixture(scope="module")
def version_dir(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("smollm2") / "smollm2"
    return import_checkpoint(smollm2_gguf, target, precisions=("f32", "int8", "int4")).version_dir


@pytest.fixture(scope="module")
def model(smollm2_gguf: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def prompts(version_dir: Path) -> list[list[int]]:
    tokenizer = tokenizers.Tokenizer.from_file(str(version_dir / "tokenizer.json"))
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [tokenizer.encode(chat.format(prompt)).ids for prompt in PROMPTS]


def _torch(path: Path) -> Executor:
    return TorchExecutor(path, kv_cache_bytes=POOL_BYTES)


def _openvino(path: Path) -> Executor:
    return OpenVinoExecutor(path, kv_cache_bytes=POOL_BYTES)


@pytest.fixture(scope="module", params=[_torch, _openvino], ids=["torch", "openvino"])
def executor(request: pytest.FixtureRequest, version_dir: Path) -> Iterator[Executor]:
    made = request.param(version_dir / "decoder.onnx")
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference_logits(model: Any, version_dir: Path) -> tuple[list[list[int]], np.ndarray]:
    rows = sample_prompts(version_dir, read_manifest(version_dir))
    with torch.inference_mode():
        return rows, np.concatenate([model(torch.tensor([row])).logits[0].numpy() for row in rows])


def test_f32_logits(executor: Executor, reference_logits: tuple[list[list[int]], np.ndarray]) -> None:
    prompts, wanted = reference_logits
    parity = compare_logits(wanted, graph_logits(executor, prompts), ("transformers", executor.name))
    print(parity)
    assert parity.num_rows > 80
    assert np.ptp(wanted) > 30
    assert parity.max_abs_error < 1e-3
    assert parity.argmax_agreement == 1.0


@pytest.fixture(scope="module")
def answers(version_dir: Path, prompts: list[list[int]]) -> list[list[int]]:
    """64 greedy tokens of each prompt, decoded together with the cache by the executor that serves."""
    executor = _openvino(version_dir / "decoder.onnx")
    driver = Driver(executor)
    sequences = [driver.sequence(prompt, room=NUM_GREEDY) for prompt in prompts]
    tokens = driver.greedy(sequences, NUM_GREEDY)
    executor.close()
    return tokens


def test_64_greedy_tokens_of_20_prompts(model: Any, prompts: list[list[int]], answers: list[list[int]]) -> None:
    """Equal to transformers' greedy decoding: by induction, if each token is its choice after those before it.

    One pass over a prompt and its answer gives all 64 choices, at a fraction of the cost of generating them.
    """
    assert len(prompts) == 20
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.inference_mode():
            choices = model(torch.tensor([prompt + answer[:-1]]), logits_to_keep=NUM_GREEDY).logits[0].argmax(-1)
        assert choices.tolist() == answer


def test_the_reference_executor_chooses_the_same(
    version_dir: Path, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    executor = _torch(version_dir / "decoder.onnx")
    texts = [prompt + answer[:-1] for prompt, answer in zip(prompts, answers, strict=True)][:5]
    choices = graph_logits(executor, texts).argmax(-1).tolist()
    for text, answer in zip(texts, answers, strict=False):
        assert choices[len(text) - NUM_GREEDY : len(text)] == answer
        choices = choices[len(text) :]


def test_kept_codes_compute_the_same(version_dir: Path) -> None:
    """The file's own 4-bit codes (Q4_1) and 8-bit ones (Q8_0), in bytes and packed: nothing is quantised twice."""
    for parity in verify_version(version_dir, _openvino):
        print(parity)
        assert parity.max_abs_error < 1e-3
        assert parity.argmax_agreement == 1.0
    assert (version_dir / "reports" / "parity.json").is_file()
