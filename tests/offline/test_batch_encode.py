"""Batches on a real encoder: MiniLM's embeddings in OpenAI's form, a reranker's order, and bad lines."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_encoders import raw_scores, sentence_vectors, write_classifier
from trtbuild.pipeline import import_checkpoint
from trtdecode.cli import main
from trtdecode.encoder.replica import EncoderReplica
from trtdecode.errors import ConfigError
from trtdecode.executor.encoder_base import EncoderBatch
from trtdecode.offline import encode
from trtdecode.offline.encode import EncoderAnswerer
from trtdecode.offline.files import BatchLine
from trtdecode.offline.run import BatchSummary, run_batch

TEXTS = ["A cat sits on the mat.", "Stock prices fell.", "Ein Satz auf Deutsch, ein wenig länger als die anderen."]


@pytest.fixture(scope="session")
def minilm_version(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> Path:
    return import_checkpoint(minilm_folder, tmp_path_factory.mktemp("repository") / "minilm").version_dir


@pytest.fixture(scope="session")
def minilm(minilm_version: Path) -> Iterator[EncoderReplica]:
    replica = EncoderReplica.load(minilm_version)
    yield replica
    replica.close()


@pytest.fixture
def answerer(minilm: EncoderReplica) -> EncoderAnswerer:
    return EncoderAnswerer(minilm, "minilm")


def line(body: Any, custom_id: str = "a", url: str = "/v1/embeddings") -> BatchLine:
    return BatchLine(1, custom_id, "POST", url, {"model": "minilm", **body} if isinstance(body, dict) else body)


def one(answerer: EncoderAnswerer, body: Any, **kwargs: str) -> dict[str, Any]:
    """The response object of one line."""
    (result,) = answerer.answers([line(body, **kwargs)])
    response: dict[str, Any] = result["response"]
    return response


def test_embeddings_equal_the_models_own(answerer: EncoderAnswerer, minilm_folder: Path) -> None:
    wanted = sentence_vectors(minilm_folder, TEXTS)
    bodies = [{"input": TEXTS[0]}, {"input": TEXTS[1:], "encoding_format": "base64"}]
    results = list(answerer.answers(line(body, f"r{number}") for number, body in enumerate(bodies)))
    assert [result["custom_id"] for result in results] == ["r0", "r1"]
    first, second = (result["response"]["body"] for result in results)
    assert (first["object"], first["model"]) == ("list", "minilm")
    np.testing.assert_allclose(first["data"][0]["embedding"], wanted[0], atol=1e-5)
    vectors = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in second["data"]]
    np.testing.assert_allclose(vectors, wanted[1:], atol=1e-5)
    assert [entry["index"] for entry in second["data"]] == [0, 1]
    assert first["usage"] == {"prompt_tokens": 9, "total_tokens": 9}  # seven words and marks, two special tokens


def test_token_ids_are_taken_as_they_are(answerer: EncoderAnswerer, minilm: EncoderReplica) -> None:
    ids = [101, 4937, 102]  # [CLS] cat [SEP]
    by_ids = one(answerer, {"input": ids})["body"]["data"][0]["embedding"]
    by_text = one(answerer, {"input": "cat"})["body"]["data"][0]["embedding"]
    np.testing.assert_allclose(by_ids, by_text, atol=1e-6)
    assert len(one(answerer, {"input": [ids, ids]})["body"]["data"]) == 2
    assert len(by_ids) == minilm.spec.hidden_size == 384


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({"input": ""}, 400, "input", "input: must not hold an empty text"),
        ({"input": ["x", ""]}, 400, "input", "input: must not hold an empty text"),
        (
            {"input": "word " * 600},
            400,
            "input",
            "input: got '602 tokens'; must be at most 256 (this model's longest text)",
        ),
        ({"input": [101, 40_000]}, 400, "input", "input: got 40000; must be from 0 to 30521"),
        ({"input": "x", "dimensions": 3}, 400, "dimensions", "dimensions: got 3; this model has 384"),
        ({"input": "x", "truncate": True}, 400, "truncate", "truncate: Extra"),
        ({"input": 3}, 400, "input", "input: Input should be a valid"),
        ({"input": "x", "model": "gpt"}, 404, "model", "model: got 'gpt'; this run serves 'minilm'"),
        (None, 400, "body", "body: "),
    ],
)
def test_a_bad_line_fails_alone(answerer: EncoderAnswerer, body: Any, status: int, param: str, message: str) -> None:
    results = list(
        answerer.answers([line({"input": "cat"}, "before"), line(body, "bad"), line({"input": "x"}, "after")])
    )
    assert [result["response"]["status_code"] for result in results] == [200, status, 200]
    assert [result["custom_id"] for result in results] == ["before", "bad", "after"]
    error = results[1]["response"]["body"]["error"]
    assert error["param"] == param
    assert error["message"].startswith(message), error["message"]
    assert "truncate = true" not in error["message"]  # it has no place in this body


def test_another_end_point_is_refused_by_name(answerer: EncoderAnswerer) -> None:
    error = one(answerer, {"prompt": "x"}, url="/v1/completions")["body"]["error"]
    assert error["message"] == "url: got '/v1/completions'; must be /v1/embeddings"


def write_requests(path: Path, count: int) -> Path:
    bodies = ({"model": "minilm", "input": f"text {number}"} for number in range(count))
    lines = ({"custom_id": f"r{n}", "method": "POST", "url": "/v1/embeddings", "body": b} for n, b in enumerate(bodies))
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    return path


def ids_and_statuses(path: Path) -> list[tuple[str, int]]:
    results = [json.loads(text) for text in path.read_text().splitlines()]
    return [(result["custom_id"], result["response"]["status_code"]) for result in results]


def test_goes_on_after_an_interruption(
    tmp_path: Path, answerer: EncoderAnswerer, minilm: EncoderReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "LINES_AT_A_TIME", 4)
    source, target = write_requests(tmp_path / "in.jsonl", 10), tmp_path / "out.jsonl"

    def interrupt(summary: BatchSummary) -> None:
        if summary.num_ok == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_batch(source, target, answerer, on_result=interrupt)
    before = minilm.metrics.counters["trtdecode_requests_total"]
    assert run_batch(source, target, answerer) == BatchSummary(10, 6, 4, 0, 4 * 4)
    assert minilm.metrics.counters["trtdecode_requests_total"] == before + 4
    assert ids_and_statuses(target) == [(f"r{number}", 200) for number in range(10)]


class BrokenOn:
    """A real executor that fails for texts with one token, as one does that runs out of memory."""

    name = "broken"

    def __init__(self, executor: Any, token: int) -> None:
        self.executor = executor
        self.token = token

    def execute(self, batch: EncoderBatch) -> np.ndarray:
        if self.token in batch.input_ids:
            raise RuntimeError("out of memory")
        rows: np.ndarray = self.executor.execute(batch)
        return rows


def test_a_failure_of_ours_is_tried_again(
    tmp_path: Path, answerer: EncoderAnswerer, minilm: EncoderReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that the executor fails on takes its line alone down, with a 5xx; the next run computes that line only."""
    source, target = write_requests(tmp_path / "in.jsonl", 6), tmp_path / "out.jsonl"
    (three,) = minilm.inputs_of(encode.EncoderCall(("3",)))
    monkeypatch.setattr(minilm, "_executor", BrokenOn(minilm._executor, three.ids[1]))
    summary = run_batch(source, target, answerer)
    assert (summary.num_ok, summary.num_failed) == (5, 1)
    assert dict(ids_and_statuses(target))["r3"] == 500
    monkeypatch.undo()
    summary = run_batch(source, target, answerer)
    assert (summary.num_taken_up, summary.num_ok, summary.num_failed) == (5, 1, 0)
    assert sorted(ids_and_statuses(target)) == [(f"r{number}", 200) for number in range(6)]


def test_a_reranker_orders_documents(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "checkpoint", num_labels=1)
    version = import_checkpoint(tmp_path / "checkpoint", tmp_path / "model").version_dir
    query, documents = "what is a b-tree?", ["fish swim", "a tree grow s.", "a b-tree is a tree."]
    raw = np.array([raw_scores(model, tmp_path / "checkpoint", query, document).item() for document in documents])
    answerer = EncoderAnswerer(EncoderReplica.load(version), "minilm")
    body = {"query": query, "documents": documents, "top_n": 2}
    results = one(answerer, body, url="/v1/rerank")["body"]["results"]
    assert [entry["index"] for entry in results] == np.argsort(-raw)[:2].tolist()
    got = [entry["relevance_score"] for entry in results]
    np.testing.assert_allclose(got, 1 / (1 + np.exp(-np.sort(raw)[:0:-1])), atol=1e-5)
    error = one(answerer, {"input": "x"})["body"]["error"]
    assert error["message"] == "url: got '/v1/embeddings'; must be /v1/rerank"


def test_a_classifier_is_refused(tmp_path: Path) -> None:
    write_classifier(tmp_path / "checkpoint", num_labels=3)
    version = import_checkpoint(tmp_path / "checkpoint", tmp_path / "model").version_dir
    with pytest.raises(ConfigError, match="sorter: a batch has no end point for task 'classify'"):
        EncoderAnswerer(EncoderReplica.load(version), "sorter")


def test_command(tmp_path: Path, minilm_version: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = minilm_version.parents[1]
    source, target = write_requests(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    arguments = ["batch", str(source), str(target), "--repository", str(repository)]
    assert main([*arguments, "--set", "num_threads=1"]) == 0
    assert "3 answered, 0 failed, 0 done before; 12 tokens in" in capsys.readouterr().err
    assert ids_and_statuses(target) == [("r0", 200), ("r1", 200), ("r2", 200)]
    assert main([*arguments, "--set", "max_num_seqs=3"]) == 1
    assert "--set max_num_seqs: minilm is an encoder; these read compute_precision," in capsys.readouterr().err
