"""Encoder replicas on real executors: equal to transformers, cut into runs, and faults that stay where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_encoders import raw_scores, write_classifier
from trtbuild.pipeline import import_checkpoint
from trtdecode.config import ServingConfig
from trtdecode.encoder.replica import EncoderReplica
from trtdecode.encoder.tensors import EncoderCall
from trtdecode.errors import ConfigError, ExecutorFailed, InvalidRequest
from trtdecode.executor.encoder_base import EncoderBatch
from trtdecode.manifest import read_manifest
from trtdecode.replica import Replica
from trtdecode.text.encoder_tokenizer import EncoderInput

QUERY = "what is a b-tree?"
DOCUMENTS = ("trees grow.", "fish swim", "a b-tree is a tree.", "?")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    """A model of transformers, its folder, and the version imported from it."""
    folder = tmp_path_factory.mktemp("reranker")
    model = write_classifier(folder / "checkpoint", num_labels=1)
    version = import_checkpoint(folder / "checkpoint", folder / "model").version_dir
    return model, folder / "checkpoint", version


@pytest.mark.parametrize("executor", ["openvino", "torch"])
@pytest.mark.parametrize("max_tokens", [64, 4096])
def test_pairs_equal_transformers(reranker: tuple[Any, Path, Path], executor: str, max_tokens: int) -> None:
    model, folder, version = reranker
    config = ServingConfig(executor=executor, max_num_batched_tokens=max_tokens, max_num_seqs=1)
    replica = EncoderReplica.load(version, config)
    inputs = replica.inputs_of(EncoderCall((QUERY,) * 4, DOCUMENTS))
    rows = replica.run(inputs)
    wanted = [raw_scores(model, folder, QUERY, document) for document in DOCUMENTS]
    assert np.ptp(wanted) > 0.1
    np.testing.assert_allclose(np.stack(rows), wanted, atol=1e-5)  # type: ignore[arg-type]
    counters = replica.metrics.counters
    assert counters["trtdecode_requests_total"] == 4
    assert counters["trtdecode_prompt_tokens_total"] == sum(len(item) for item in inputs)
    assert counters["trtdecode_steps_total"] == (1 if max_tokens == 4096 else 2)


def _input(ids: list[int]) -> EncoderInput:
    return EncoderInput(ids, [0] * len(ids))


@pytest.mark.gpu
def test_a_gpu_computes_the_same(reranker: tuple[Any, Path, Path]) -> None:
    call = EncoderCall((QUERY,) * 4, DOCUMENTS)
    replicas = [EncoderReplica.load(reranker[2], device_kind=kind) for kind in ("CPU", "GPU")]
    assert "executor torch on cuda:0" in replicas[1].describe()
    cpu, gpu = (np.stack(replica.run(replica.inputs_of(call))) for replica in replicas)  # type: ignore[arg-type]
    np.testing.assert_allclose(gpu, cpu, atol=1e-4)


class FailingOn:
    """An executor that raises for batches that hold a token, and counts what it was asked."""

    name = "failing"

    def __init__(self, token: int) -> None:
        self.token = token
        self.sizes: list[int] = []

    def execute(self, batch: EncoderBatch) -> np.ndarray:
        self.sizes.append(len(batch.query_begins) - 1)
        if self.token in batch.input_ids:
            raise RuntimeError("out of memory")
        return batch.input_ids[batch.query_begins[:-1]].astype(np.float32)[:, None]

    def describe(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


def replica_with(executor: Any, version: Path, **config: Any) -> EncoderReplica:
    spec = read_manifest(version).spec
    return EncoderReplica(spec, None, executor, "test", ServingConfig(**config))  # type: ignore[arg-type]


def test_a_text_that_fails_leaves_its_neighbours(reranker: tuple[Any, Path, Path]) -> None:
    executor = FailingOn(9)
    replica = replica_with(executor, reranker[2])
    tokens = [[4, 5], [9, 5], [6, 5, 7]]
    call = EncoderCall(inputs=tuple(_input(ids) for ids in tokens))
    rows = replica.run(replica.inputs_of(call))
    assert [row.tolist() for row in (rows[0], rows[2])] == [[4.0], [6.0]]  # type: ignore[union-attr]
    assert isinstance(rows[1], ExecutorFailed) and "out of memory" in str(rows[1])
    assert executor.sizes == [3, 1, 1, 1]
    assert replica.metrics.counters["trtdecode_step_failures_total"] == 2


def test_longer_than_the_context(reranker: tuple[Any, Path, Path]) -> None:
    replica = EncoderReplica.load(reranker[2], ServingConfig(max_context_len=10))
    assert replica.max_context_len == 10
    long = "a " * 9
    with pytest.raises(InvalidRequest, match=r"text_input: got '11 tokens'; must be at most 10 .* truncate = true"):
        replica.inputs_of(EncoderCall((long,)))
    (cut,) = replica.inputs_of(EncoderCall((long,), truncate=True))
    assert list(cut.ids) == [2, *[6] * 8, 3]  # [CLS] and [SEP] stay
    with pytest.raises(InvalidRequest, match="input_ids: got '11 tokens'; must be at most 10"):
        replica.inputs_of(EncoderCall(inputs=(_input([1] * 11),)))


def test_a_text_too_long_to_tokenise_in_passing(reranker: tuple[Any, Path, Path]) -> None:
    replica = EncoderReplica.load(reranker[2], ServingConfig(max_context_len=10))
    spaces = " " * 2560 + "tree"  # few tokens, many characters
    with pytest.raises(
        InvalidRequest, match=r"text_pair: got '2564 characters'; must be at most 2560 .* truncate = true"
    ):
        replica.inputs_of(EncoderCall(("a",), (spaces,)))
    (cut,) = replica.inputs_of(EncoderCall((spaces,), truncate=True))
    assert list(cut.ids) == [2, 3]
    (whole,) = replica.inputs_of(EncoderCall((spaces[4:],)))
    assert list(whole.ids) == [2, 7, 3]


def test_of_a_pair_the_longer_text_is_cut(reranker: tuple[Any, Path, Path]) -> None:
    replica = EncoderReplica.load(reranker[2], ServingConfig(max_context_len=8))
    (cut,) = replica.inputs_of(EncoderCall(("fish swim",), ("a " * 9,), truncate=True))
    assert list(cut.ids) == [2, 11, 13, 3, 6, 6, 6, 3]
    assert list(cut.token_types) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_without_a_tokenizer_texts_are_refused(reranker: tuple[Any, Path, Path]) -> None:
    with pytest.raises(InvalidRequest, match="no tokenizer; send input_ids"):
        replica_with(FailingOn(0), reranker[2]).inputs_of(EncoderCall(("a",)))


def test_what_cannot_serve_an_encoder_is_refused(reranker: tuple[Any, Path, Path], chain_version: Path) -> None:
    with pytest.raises(ConfigError, match="tensorrt does not serve encoders; use torch"):
        EncoderReplica.load(reranker[2], ServingConfig(executor="tensorrt"))
    with pytest.raises(ConfigError, match="no 'mixed'; use one of f32, int8, bf16"):
        EncoderReplica.load(reranker[2], ServingConfig(compute_precision="mixed"))
    with pytest.raises(ConfigError, match="task rerank, an encoder; it generates nothing: serve it with"):
        Replica.load(reranker[2])
    with pytest.raises(ConfigError, match="a generating model, not an encoder"):
        EncoderReplica.load(chain_version)
