"""Case C42: the window is W keys, itself included, however tokens are fed, and only where the config says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from builder.tiny_models import LLAMA_SIZES, random_prompt, save_model
from conformance.driver import Driver
from trtbuild.checkpoint import open_checkpoint
from trtbuild.graph.author import author_graph, config_of
from trtbuild.graph.config import sliding_windows
from trtdecode.executor.torch_executor import TorchExecutor

WINDOW = 4
SIZES = {**LLAMA_SIZES, "num_hidden_layers": 1}
PROMPT = random_prompt(13, SIZES["vocab_size"])


@pytest.fixture(scope="module")
def make_driver(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Driver]:
    folder = tmp_path_factory.mktemp("window")
    save_model(transformers.MistralConfig(**SIZES, sliding_window=WINDOW), folder)
    author_graph(open_checkpoint(folder), folder / "decoder.onnx", "f32")
    return lambda: Driver(TorchExecutor(folder / "decoder.onnx", kv_cache_bytes=1 << 20, block_size=4))


def test_four_ways_to_feed_the_prompt_agree(make_driver: Callable[[], Driver]) -> None:
    driver = make_driver()
    whole = driver.prefill(driver.sequence(PROMPT))
    one_by_one = driver.prefill(driver.sequence(PROMPT), chunk=1)
    chunked = driver.sequence(PROMPT)
    chunks = np.concatenate([driver.step((chunked, count), every_row=True) for count in (5, 5, 3)])
    hit = driver.prefill(driver.sequence(PROMPT, prefix=chunked))
    np.testing.assert_allclose(one_by_one, whole, atol=1e-4)
    np.testing.assert_allclose(chunks, whole, atol=1e-4)
    np.testing.assert_allclose(hit, whole[12:], atol=1e-4)


def test_a_token_is_forgotten_after_exactly_the_window(make_driver: Callable[[], Driver]) -> None:
    driver = make_driver()
    changed = [*PROMPT[:2], (PROMPT[2] + 1) % SIZES["vocab_size"], *PROMPT[3:]]
    before, after = (driver.prefill(driver.sequence(tokens)) for tokens in (PROMPT, changed))
    differs = np.abs(before - after).max(axis=1) > 1e-6
    assert differs.tolist() == [False, False, True, True, True, True] + [False] * 7


RAW: dict[str, Any] = {"sliding_window": 8}


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (8, 8, 8)),
        ({"sliding_window": None}, (0, 0, 0)),
        ({"use_sliding_window": False}, (0, 0, 0)),
        ({"use_sliding_window": True, "max_window_layers": 2}, (0, 0, 8)),
        ({"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, (8, 0, 8)),
        ({"layer_types": ["full_attention"] * 3, "use_sliding_window": True}, (0, 0, 0)),
    ],
)
def test_windows_of_a_config(changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    assert sliding_windows({**RAW, **changes}, 3) == windows


def test_windows_reach_the_manifest(tmp_path: Path) -> None:
    save_model(transformers.MistralConfig(**SIZES, sliding_window=WINDOW), tmp_path)
    assert config_of(open_checkpoint(tmp_path)).spec.sliding_windows == (WINDOW,)
