"""Calibration through the reference executor, the shipped texts, and the figures of quality."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from builder.engine.conftest import tiny_checkpoint
from trtbuild.engine.segments import load_graph
from trtbuild.pipeline import import_checkpoint
from trtbuild.quantize.calibrate import (
    calibrate_decoder,
    group_texts,
    input_widths,
    prompt_batch,
    shipped_texts,
    texts_of,
)
from trtbuild.quantize.decoder_statistics import DecoderStatistics
from trtbuild.quantize.quality import (
    check_quality,
    measure_quality,
    next_tokens,
    perplexity,
    read_limits,
    record_quality,
)
from trtdecode import support
from trtdecode.errors import BuildError, ConfigError

TEXTS = [[7, 8, 9], [300], list(range(40))]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    import_checkpoint(tiny_checkpoint(folder / "checkpoint"), folder / "model", precisions=("f32",))
    return folder / "model" / "1" / "decoder.onnx"


def test_shipped_texts_are_enough_and_apart() -> None:
    calibration, evaluation = shipped_texts(), shipped_texts("evaluation.txt")
    assert len(calibration) >= 128
    assert len(evaluation) >= 20
    assert not set(calibration) & set(evaluation)
    assert texts_of("a\nb\n\n\r\n\n c \n") == ("a\nb", "c")


def test_every_matmul_input_is_seen_once_a_token(graph: Path) -> None:
    widths = input_widths(load_graph(graph).graph)
    statistics = calibrate_decoder(graph, TEXTS, widths, with_hessians=True)
    assert len(statistics) == 2 * 4 + 1
    num_tokens = sum(map(len, TEXTS))
    for name, one in statistics.items():
        assert one.num_rows == (len(TEXTS) if "head" in name else num_tokens)  # the head sees the last rows only
        assert one.channel_absmax.shape == (widths[name],)
        np.testing.assert_allclose(one.hessian, one.sample.T @ one.sample, rtol=1e-3, atol=1e-3)


def test_nothing_to_calibrate_with(graph: Path) -> None:
    with pytest.raises(BuildError, match="nothing was seen of"):
        calibrate_decoder(graph, [[]], input_widths(load_graph(graph).graph))


def test_hessians_come_in_passes_of_bounded_memory(graph: Path) -> None:
    widths = input_widths(load_graph(graph).graph)
    statistics = DecoderStatistics(graph, TEXTS, widths, hessian_budget=3 * 4 * 128**2)
    names = list(widths)
    for name in names:
        assert statistics[name].hessian.shape == (widths[name], widths[name])
    assert 3 <= statistics.num_passes <= 5
    at_once = DecoderStatistics(graph, TEXTS, widths)
    assert at_once[names[0]].num_rows == sum(map(len, TEXTS))
    assert at_once.num_passes == 1


def test_batches_of_prompts() -> None:
    batch = prompt_batch([[5, 6, 7], [8]], 2, every_row=True)
    assert batch.input_ids.tolist() == [5, 6, 7, 8]
    assert batch.positions.tolist() == [0, 1, 2, 0]
    assert batch.query_begins.tolist() == [0, 3, 4]
    assert batch.block_begins.tolist() == [0, 2, 3]
    assert batch.block_indices.tolist() == [0, 1, 2]
    assert batch.logit_indices.tolist() == [0, 1, 2, 3]
    assert prompt_batch([[5, 6, 7], [8]], 2, every_row=False).logit_indices.tolist() == [2, 3]
    assert next_tokens(batch).tolist() == [6, 7, -1, -1]
    assert [len(group) for group in group_texts([[1] * 300, [1] * 300, [1] * 200, [], [1] * 900])] == [1, 2, 1]
    assert [len(group) for group in group_texts([[1]] * 100)] == [64, 36]


def test_perplexity_by_hand() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32))
    assert perplexity([logits], [np.array([0, 2])]) == pytest.approx(math.exp(-(math.log(0.5) + math.log(0.8)) / 2))
    assert perplexity([logits], [np.array([0, -1])]) == pytest.approx(2.0)


def test_quality_limits_and_record(tmp_path: Path) -> None:
    batch = prompt_batch([[0, 1, 2]], 16, every_row=True)
    reference = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    same = measure_quality("fp16", [batch], [reference], [reference])
    assert (same.kl_divergence, same.perplexity_ratio, same.argmax_agreement) == (0, 1, 1)
    check_quality(same, {"fp16": {"max_kl": 0.0, "max_perplexity_ratio": 1.0}})
    other = measure_quality("fp16", [batch], [reference], [reference[:, ::-1]])
    with pytest.raises(BuildError, match=r"fp16: KL divergence .* against f32 is over the limit 0\.001"):
        check_quality(other, read_limits())
    broken = measure_quality("fp16", [batch], [reference], [np.full_like(reference, np.nan)])
    with pytest.raises(BuildError, match="KL divergence nan"):
        check_quality(broken, read_limits())
    for quality in (other, same):
        path = record_quality(tmp_path, quality)
    (entry,) = json.loads(path.read_text())
    assert (entry["candidate"], entry["kl_divergence"]) == ("fp16 engines", 0)


def test_the_limits_file(tmp_path: Path) -> None:
    assert set(read_limits()) == set(support.ENGINE_PRECISIONS)
    path = tmp_path / "limits.toml"
    path.write_text("[fp8]\nmax_kl = 1\n")
    with pytest.raises(ConfigError, match=r"\[fp8\] must hold max_kl and max_perplexity_ratio, nothing else"):
        read_limits(path)
    with pytest.raises(ConfigError, match="not readable as limits"):
        read_limits(tmp_path / "none.toml")
