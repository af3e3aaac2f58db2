"""Tensors of encoder models: what is accepted, what is refused and how, and what is answered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trtdecode.encoder.scores import activate
from trtdecode.encoder.tensors import EncoderCall, input_specs, output_specs, read_encoder_call, render_rows
from trtdecode.errors import InvalidRequest
from trtdecode.manifest import ModelSpec
from trtdecode.text.encoder_tokenizer import EncoderInput

SIZES: dict[str, Any] = {
    "family": "bert",
    "num_layers": 1,
    "hidden_size": 4,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 4,
    "vocab_size": 100,
    "max_context_len": 8,
    "sliding_windows": (0,),
    "num_token_types": 2,
}
EMBED = ModelSpec(**SIZES, task="embed")
RERANK = ModelSpec(**SIZES, task="rerank", score_activation="sigmoid")
CLASSIFY = ModelSpec(**SIZES, task="classify", score_activation="softmax", labels=("bad", "good", "so so"))


def texts(*values: object) -> np.ndarray:
    return np.array([[value] for value in values], dtype=object)


def ids(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.int32)


def test_texts() -> None:
    call = read_encoder_call({"text_input": texts("grüß".encode(), b"", "str")}, EMBED)
    assert call == EncoderCall(texts=("grüß", "", "str"))


def test_pairs_and_truncation() -> None:
    tensors = {"text_input": texts(b"q"), "text_pair": texts(b"d"), "truncate": np.array([[True]])}
    assert read_encoder_call(tensors, RERANK) == EncoderCall(("q",), ("d",), truncate=True)
    assert read_encoder_call({"text_input": texts(b"q")}, CLASSIFY).pairs == ()


def test_ids_with_mask_and_types() -> None:
    tensors = {
        "input_ids": ids([5, 6, 7], [8, 0, 0]),
        "attention_mask": ids([1, 1, 1], [1, 0, 0]),
        "token_type_ids": ids([0, 1, 1], [0, 0, 0]),
    }
    call = read_encoder_call(tensors, EMBED)
    assert call.inputs == (EncoderInput([5, 6, 7], [0, 1, 1]), EncoderInput([8], [0]))
    assert read_encoder_call({"input_ids": ids([9])}, EMBED).inputs == (EncoderInput([9], [0]),)


@pytest.mark.parametrize(
    ("spec", "tensors", "words"),
    [
        (EMBED, {}, ["text_input", "neither", "input_ids"]),
        (EMBED, {"text_input": texts(b"x"), "input_ids": ids([1])}, ["both"]),
        (EMBED, {"text_input": texts(b"x"), "text_pair": texts(b"y")}, ["text_pair", "known", "text_input"]),
        (EMBED, {"text_input": texts(b"\xff")}, ["text_input", "UTF-8", "byte 0"]),
        (EMBED, {"text_input": np.array([b"x"], dtype=object)}, ["text_input", "[1]", "[k, 1]"]),
        (EMBED, {"text_input": np.array([[b"x", b"y"]], dtype=object)}, ["text_input", "[1, 2]", "[k, 1]"]),
        (EMBED, {"text_input": np.array([[1]], np.int32)}, ["text_input", "int32", "STRING"]),
        (EMBED, {"input_ids": np.zeros((1, 0), np.int32)}, ["input_ids", "[1, 0]"]),
        (EMBED, {"input_ids": ids([1, 100])}, ["input_ids", "100", "0 to 99"]),
        (EMBED, {"input_ids": ids([-1])}, ["input_ids", "-1", "0 to 99"]),
        (EMBED, {"input_ids": ids([1]), "token_type_ids": ids([2])}, ["token_type_ids", "2", "0 to 1"]),
        (EMBED, {"input_ids": ids([1, 2]), "attention_mask": ids([1])}, ["attention_mask", "[1, 1]", "[1, 2]"]),
        (EMBED, {"input_ids": ids([1]), "attention_mask": ids([0])}, ["attention_mask", "row 0", "at least one"]),
        (EMBED, {"input_ids": ids([1]), "truncate": np.array([[True]])}, ["truncate", "text_input only"]),
        (EMBED, {"text_input": texts(b"x"), "attention_mask": ids([1])}, ["attention_mask", "input_ids only"]),
        (RERANK, {"text_input": texts(b"q")}, ["text_pair", "query"]),
    ],
)
def test_refused_by_name(spec: ModelSpec, tensors: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_encoder_call(tensors, spec)
    assert [word for word in words if word not in str(caught.value)] == []


def test_embedding() -> None:
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    outputs = render_rows(rows, [3, 5], EMBED)
    assert outputs["embedding"] is rows
    assert outputs["num_input_tokens"].tolist() == [[3], [5]]


def test_scores_of_a_reranker() -> None:
    outputs = render_rows(np.array([[0.0], [-2.0]], np.float32), [3, 5], RERANK)
    assert outputs["logits"].tolist() == [[0.0], [-2.0]]
    np.testing.assert_allclose(outputs["score"], [[0.5], [0.11920292]], rtol=1e-6)


def test_labels_and_probabilities() -> None:
    outputs = render_rows(np.array([[0.0, 0.0, np.log(2)], [9.0, 1.0, 1.0]], np.float32), [3, 5], CLASSIFY)
    np.testing.assert_allclose(outputs["probabilities"][0], [0.25, 0.25, 0.5], rtol=1e-6)
    assert outputs["label"].tolist() == [[b"so so"], [b"bad"]]
    assert outputs["labels"].tolist() == [[b"bad", b"good", b"so so"]] * 2


@pytest.mark.parametrize("spec", [EMBED, RERANK, CLASSIFY])
def test_outputs_are_what_the_configuration_promises(spec: ModelSpec) -> None:
    width = 4 if spec is EMBED else len(spec.labels) or 1
    outputs = render_rows(np.ones((2, width), np.float32), [1, 1], spec)
    assert {name: array.shape[1:] for name, array in outputs.items()} == {
        promised.name: promised.dims for promised in output_specs(spec)
    }
    assert ("text_pair" in {tensor.name for tensor in input_specs(spec)}) == (spec is not EMBED)


def test_activations_do_not_overflow() -> None:
    rows = np.array([[1e4, -1e4]], np.float32)
    np.testing.assert_allclose(activate(rows, "sigmoid"), [[1.0, 0.0]], atol=1e-30)
    assert activate(rows, "softmax").tolist() == [[1.0, 0.0]]
    assert activate(rows, "identity") is rows
