"""The executors on a real model: against each other, and alone against in a batch.

Against transformers: tests/builder/verify/test_smollm2_parity.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conformance.driver import Driver, Sequence
from trtdecode.executor.openvino_executor import OpenVinoExecutor
from trtdecode.executor.openvino_precisions import BF16_PRECISIONS
from trtdecode.executor.torch_executor import TorchExecutor

pytestmark = pytest.mark.slow

POOL_BYTES = 1 << 29
QUESTIONS = [
    "What is the capital of France?",
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "List three prime numbers.",
    "How does a refrigerator work?",
    "Translate 'good morning' to Spanish.",
    "What is photosynthesis?",
    "Name a planet with rings.",
    "Explain recursion to a child.",
    "Who wrote Hamlet?",
    "What is 12 times 8?",
    "Give me a recipe for pancakes.",
    "What causes tides?",
    "Describe the colour red.",
    "How many continents are there?",
    "What is a black hole?",
    "Tell me a joke.",
    "What does DNA stand for?",
    "When did the Second World War end?",
    "Summarise the water cycle in one sentence.",
]


@pytest.fixture(scope="module")
def prompts(smollm2_version: Path) -> list[list[int]]:
    """The questions as chat prompts, tokenised."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2_version / "tokenizer.json"))
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [tokenizer.encode(template.format(question)).ids for question in QUESTIONS]


@pytest.fixture(scope="module")
def openvino(smollm2_version: Path) -> Iterator[Driver]:
    executor = OpenVinoExecutor(smollm2_version / "decoder.onnx", kv_cache_bytes=POOL_BYTES)
    yield Driver(executor)
    executor.close()


def greedy(driver: Driver, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Decodes the prompts together and gives the blocks back."""
    sequences = [driver.sequence(prompt, room=num_tokens) for prompt in prompts]
    try:
        return driver.greedy(sequences, num_tokens)
    finally:
        for sequence in sequences:
            driver.release(sequence)


def every_row(driver: Driver, tokens: list[int], chunk: int = 0) -> np.ndarray:
    """Logits of every position."""
    sequence: Sequence = driver.sequence(tokens)
    rows = driver.prefill(sequence, chunk)
    driver.release(sequence)
    return rows


def test_openvino_equals_torch(smollm2_version: Path, openvino: Driver, prompts: list[list[int]]) -> None:
    torch = Driver(TorchExecutor(smollm2_version / "decoder.onnx", kv_cache_bytes=1 << 26))
    for prompt in prompts[:4]:
        np.testing.assert_allclose(every_row(openvino, prompt, 7), every_row(torch, prompt), atol=1e-3, rtol=0)


def test_openvino_unpacks_int8_weights_as_torch_does(smollm2_version: Path, prompts: list[list[int]]) -> None:
    openvino = Driver(OpenVinoExecutor(smollm2_version / "decoder.int8.onnx", kv_cache_bytes=1 << 26))
    torch = Driver(TorchExecutor(smollm2_version / "decoder.int8.onnx", kv_cache_bytes=1 << 26))
    for prompt in prompts[:4]:
        np.testing.assert_allclose(every_row(openvino, prompt), every_row(torch, prompt), atol=1e-3, rtol=0)


@pytest.mark.parametrize("graph", ["decoder.onnx", "decoder.int8.onnx"])
def test_alone_equals_in_a_batch_of_33(smollm2_version: Path, prompts: list[list[int]], graph: str) -> None:
    """Whole and in chunks of 7, against 32 others: compute precision f32, whatever the weights are."""
    driver = Driver(OpenVinoExecutor(smollm2_version / graph, kv_cache_bytes=POOL_BYTES))
    crowd = [*prompts, *(prompt[3:] for prompt in prompts[:13])]
    together = greedy(driver, crowd, 16)
    for prompt, expected in list(zip(crowd, together, strict=True))[:5]:
        assert greedy(driver, [prompt], 16) == [expected]
        chunked = driver.sequence(prompt, room=16)
        driver.step((chunked, 7))
        assert driver.greedy([chunked], 16) == [expected]
        driver.release(chunked)


@pytest.mark.parametrize(
    ("compute_precision", "limit"),
    [("f32", 0.003), ("int8", 0.01), ("bf16", 0.01), ("mixed", 0.01)],
)
def test_int8_weights_stay_close_to_the_model(
    smollm2_version: Path, openvino: Driver, prompts: list[list[int]], compute_precision: str, limit: float
) -> None:
    """Mean KL divergence from the f32 model over the model's own answers, with a u8 KV cache."""
    import openvino as ov

    has_bf16 = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if compute_precision in BF16_PRECISIONS and not has_bf16:
        pytest.skip("this CPU has no bfloat16")
    driver = Driver(
        OpenVinoExecutor(
            smollm2_version / "decoder.int8.onnx",
            kv_cache_bytes=1 << 27,
            kv_cache_precision="u8",
            compute_precision=compute_precision,
        )
    )
    texts = [prompt + answer for prompt, answer in zip(prompts, greedy(openvino, prompts[:5], 40), strict=False)]
    divergences = [kl_divergence(every_row(openvino, text), every_row(driver, text)) for text in texts]
    assert np.concatenate(divergences).mean() < limit


def kl_divergence(expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """KL(expected || actual) of each row's distribution, in nats."""

    def log_softmax(logits: np.ndarray) -> np.ndarray:
        shifted = logits - logits.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)).astype(np.float32)

    log_expected = log_softmax(expected)
    return (np.exp(log_expected) * (log_expected - log_softmax(actual))).sum(axis=-1)
