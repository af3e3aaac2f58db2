"""Encoders in a real tritonserver: MiniLM, a reranker and a classifier, batched by Triton's dynamic batcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as aio
from tiny_encoders import raw_scores, sentence_vectors, write_classifier
from triton_fixtures import RunningServer, metric, wait_for
from tritonclient.utils import InferenceServerException
from trtbuild.pipeline import import_checkpoint

pytestmark = pytest.mark.triton_server

LABELS = {0: "question", 1: "statement", 2: "other"}
#: Runs when four texts are there, and not before: what shares a batch does not depend on time.
FOUR_AT_ONCE = """
max_batch_size: 4
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 60000000 }
"""
#: Triton asks for zero data (an empty text) before any client does; a failure would fail the load.
WARMUP = """
model_warmup { name: "empty" batch_size: 1
  inputs { key: "text_input" value { data_type: TYPE_STRING dims: 1 zero_data: true } } }
"""
#: Name -> the rest of config.pbtxt.
CONFIGS = {"minilm": "", "reranker": "", "reranker_four": FOUR_AT_ONCE, "classifier": WARMUP}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> dict[str, tuple[Any, Path]]:
    """Model name -> (transformers' model or None, Hugging Face folder)."""
    folder = tmp_path_factory.mktemp("encoders")
    reranker = write_classifier(folder / "reranker", num_labels=1), folder / "reranker"
    classifier = write_classifier(folder / "classifier", id2label=LABELS), folder / "classifier"
    return {
        "minilm": (None, minilm_folder),
        "reranker": reranker,
        "reranker_four": reranker,
        "classifier": classifier,
    }


@pytest.fixture(scope="module")
def server(
    make_server: Callable[..., RunningServer],
    checkpoints: dict[str, tuple[Any, Path]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("repository")
    for name, (_, source) in checkpoints.items():
        import_checkpoint(source, repository / name)
        (repository / name / "config.pbtxt").write_text(f'backend: "trtdecode"\n{CONFIGS[name]}')
    with make_server(repository) as running:
        yield running


def tensor(name: str, values: Any) -> grpcclient.InferInput:
    """[k, n] of texts (str or bytes), numbers or booleans."""
    array = np.array(values)
    if array.dtype.kind in "US":
        array = np.array([[v.encode() if isinstance(v, str) else v for v in row] for row in values], dtype=object)
    kinds = {"O": "BYTES", "b": "BOOL", "i": "INT32"}
    made = grpcclient.InferInput(name, list(array.shape), kinds[array.dtype.kind])
    made.set_data_from_numpy(array.astype(np.int32) if array.dtype.kind == "i" else array)
    return made


def infer_all(server: RunningServer, model: str, requests: list[dict[str, Any]]) -> list[Any]:
    """Sends the requests at once; results in order, an exception where one failed."""

    async def send() -> list[Any]:
        async with aio.InferenceServerClient(server.grpc_address) as client:
            calls = [
                client.infer(model, [tensor(name, values) for name, values in request.items()]) for request in requests
            ]
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(send())


def infer(server: RunningServer, model: str, **values: Any) -> Any:
    (result,) = infer_all(server, model, [values])
    if isinstance(result, BaseException):
        raise result
    return result


def counts(server: RunningServer, model: str) -> tuple[int, int]:
    """(inferences, executions) by Triton's own statistics."""
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        stats = client.get_inference_statistics(model).model_stats[0]
    return stats.inference_count, stats.execution_count


def executions_of(server: RunningServer, model: str, before: tuple[int, int], texts: int) -> int:
    """Executions since `before`, once Triton has counted `texts` more: it counts a batch after it has answered it."""
    wait_for(
        lambda: counts(server, model)[0] == before[0] + texts and counts(server, model)[1] > before[1],
        what=f"{texts} texts counted",
    )
    return counts(server, model)[1] - before[1]


SENTENCES = [
    "A cat sits on the mat.",
    "Ein Satz auf Deutsch, etwas länger als der erste.",
    "x",
    "",
    "日本語の文と emoji 🌶",
    "def f(x):\n    return x + 1",
    *(f"Sentence number {number} " + "goes on and on " * number for number in range(12)),
]


def test_minilm_equals_transformers_to_1e_5(server: RunningServer, minilm_folder: Path) -> None:
    results = infer_all(server, "minilm", [{"text_input": [[text]]} for text in SENTENCES])
    got = np.concatenate([result.as_numpy("embedding") for result in results])
    wanted = sentence_vectors(minilm_folder, SENTENCES)
    assert got.shape == (len(SENTENCES), 384)
    cosines = (got * wanted).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(wanted, axis=1)
    assert np.abs(cosines - 1).max() < 1e-5
    assert np.abs(np.linalg.norm(got, axis=1) - 1).max() < 1e-5
    assert results[2].as_numpy("num_input_tokens").tolist() == [[3]]  # [CLS] x [SEP]


def test_many_texts_in_one_request(server: RunningServer) -> None:
    together = infer(server, "minilm", text_input=[[text] for text in SENTENCES]).as_numpy("embedding")
    apart = [infer(server, "minilm", text_input=[[text]]).as_numpy("embedding") for text in SENTENCES[:3]]
    assert np.abs(together[:3] - np.concatenate(apart)).max() < 1e-6


def test_a_long_text_is_refused_or_cut(server: RunningServer, minilm_folder: Path) -> None:
    long = "stock prices fell " * 200
    with pytest.raises(InferenceServerException, match="text_input: got '602 tokens'; must be at most 256") as caught:
        infer(server, "minilm", text_input=[[long]])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    got = infer(server, "minilm", text_input=[[long]], truncate=[[True]]).as_numpy("embedding")
    assert abs((got @ sentence_vectors(minilm_folder, [long]).T).item() - 1) < 1e-5


def test_four_requests_one_batch_and_an_error_of_one(
    server: RunningServer, checkpoints: dict[str, tuple[Any, Path]]
) -> None:
    """The faulty request runs in the same batch; its neighbours are answered as if alone."""
    model, folder = checkpoints["reranker"]
    pairs = [("what is a tree?", "a tree grow s."), ("fish", "fish swim"), ("b-trees", "a tree")]
    requests: list[dict[str, Any]] = [{"text_input": [[query]], "text_pair": [[text]]} for query, text in pairs]
    requests.insert(1, {"text_input": [["x"]], "text_pair": [[b"\xff"]]})
    before = counts(server, "reranker_four")
    results = infer_all(server, "reranker_four", requests)
    error = results.pop(1)
    assert error.status() == "StatusCode.INVALID_ARGUMENT"
    assert "text_pair" in error.message() and "valid UTF-8 (byte 0)" in error.message()
    wanted = np.stack([raw_scores(model, folder, *pair) for pair in pairs])
    got = np.concatenate([result.as_numpy("logits") for result in results])
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    scores = np.concatenate([result.as_numpy("score") for result in results])
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-wanted)), atol=1e-5)
    assert executions_of(server, "reranker_four", before, texts=4) == 1


def test_ids_of_different_lengths_share_a_batch(
    server: RunningServer, checkpoints: dict[str, tuple[Any, Path]]
) -> None:
    before = counts(server, "reranker_four")
    rows = [[2, 7, 3], [2, 6, 9, 10, 7, 3], [2, 3], [2, 11, 13, 15, 3]]
    results = infer_all(
        server, "reranker_four", [{"input_ids": [row], "token_type_ids": [[0] * len(row)]} for row in rows]
    )
    alone = [infer(server, "reranker", input_ids=[row]).as_numpy("logits") for row in rows]
    np.testing.assert_allclose([result.as_numpy("logits") for result in results], alone, atol=1e-6)
    assert executions_of(server, "reranker_four", before, texts=4) == 1


def test_classifier(server: RunningServer, checkpoints: dict[str, tuple[Any, Path]]) -> None:
    model, folder = checkpoints["classifier"]
    texts = ["what is a tree?", "fish swim.", "a - a"]
    result = infer(server, "classifier", text_input=[[text] for text in texts])
    raw = np.stack([raw_scores(model, folder, text) for text in texts])
    shares = np.exp(raw) / np.exp(raw).sum(1, keepdims=True)
    np.testing.assert_allclose(result.as_numpy("probabilities"), shares, atol=1e-5)
    assert result.as_numpy("label").tolist() == [[LABELS[index].encode()] for index in raw.argmax(1)]
    assert result.as_numpy("labels")[0].tolist() == [b"question", b"statement", b"other"]


def test_only_what_is_asked_for_is_sent(server: RunningServer) -> None:
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        wanted = [grpcclient.InferRequestedOutput("label")]
        result = client.infer("classifier", [tensor("text_input", [["fish"]])], outputs=wanted)
    assert [output.name for output in result.get_response().outputs] == ["label"]


def test_the_configuration_is_filled_in(server: RunningServer) -> None:
    config = server.client.call("GET", "/v2/models/minilm/config").json()
    assert config["max_batch_size"] == 32
    assert "dynamic_batching" in config
    assert not config.get("model_transaction_policy", {}).get("decoupled", False)
    assert {output["name"]: output["dims"] for output in config["output"]} == {
        "embedding": [384],
        "num_input_tokens": [1],
    }


def test_http_generate_answers_too(server: RunningServer) -> None:
    answer = server.client.generate("classifier", {"text_input": "fish swim."})
    assert answer.status == 200
    assert answer.json()["label"] in LABELS.values()
    refused = server.client.generate("reranker", {"text_input": "fish"})
    assert refused.status == 400 and "text_pair" in refused.json()["error"]


def test_supervision_and_drain_know_encoders(server: RunningServer) -> None:
    probe = {"text_input": "a", "max_tokens": 1, "exclude_input_in_output": True}  # what server/health.py sends
    assert server.client.generate("minilm", probe).status == 200
    control = server.control("minilm")
    assert control.ask("drain", timeout_s=5)["drained"] is True
    status = control.ask("status")
    assert (status["model"], status["live"], status["draining"]) == ("minilm", 0, False)


def test_metrics_count_texts_and_tokens(server: RunningServer) -> None:
    def counted() -> tuple[float, ...]:
        return tuple(
            metric(server, f"trtdecode_{name}_total", "classifier") for name in ("requests", "prompt_tokens", "steps")
        )

    wait_for(lambda: counted()[0] == counts(server, "classifier")[0], what="earlier tests' texts published")
    before = counted()
    infer(server, "classifier", text_input=[["fish"], ["a tree"]])
    wait_for(lambda: all(now > old for now, old in zip(counted(), before, strict=True)), what="published")
    assert [now - old for now, old in zip(counted(), before, strict=True)] == [2, 3 + 4, 1]


def test_unload_and_load_again(server: RunningServer) -> None:
    pid = server.stub_pid("classifier")
    server.client.unload("classifier")
    server.client.load("classifier")
    assert infer(server, "classifier", text_input=[["fish"]]).as_numpy("probabilities").shape == (1, 3)
    assert server.stub_pid("classifier") != pid
