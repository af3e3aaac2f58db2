"""Encoder families and MiniLM against transformers, run by OpenVINO from the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
import torch
import transformers
from builder.tiny_models import random_prompt, randomize
from tiny_encoders import sentence_vectors, write_classifier
from trtbuild.checkpoint import open_checkpoint
from trtbuild.graph.author import author_graph, config_of
from trtbuild.graph.check import check_graph
from trtbuild.pipeline import import_checkpoint
from trtdecode.errors import UnsupportedError
from trtdecode.executor.encoder_base import pack
from trtdecode.manifest import read_manifest

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}
MODERN = {**SIZES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}

CONFIGS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "bert": lambda: transformers.BertConfig(**SIZES),
    "roberta": lambda: transformers.RobertaConfig(**SIZES, type_vocab_size=1, pad_token_id=1),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**SIZES, type_vocab_size=1, pad_token_id=1),
    "modernbert": lambda: transformers.ModernBertConfig(**MODERN, local_attention=8),
}


def run(graph: Path, texts: list[list[int]], types: list[list[int]] | None = None) -> np.ndarray:
    """The graph's one output for a ragged batch."""
    compiled = openvino.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    batch = pack(texts, types)
    feeds = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return np.array(compiled(feeds)[0])


def author(model: Any, folder: Path) -> Path:
    """Saves a model, and writes its checked f32 graph beside it."""
    model.save_pretrained(folder)
    checkpoint = open_checkpoint(folder)
    author_graph(checkpoint, folder / "encoder.onnx", "f32")
    check_graph(folder / "encoder.onnx", config_of(checkpoint).spec)
    return folder / "encoder.onnx"


def made(kind: Any, config: transformers.PretrainedConfig) -> Any:
    model = kind.from_config(config, dtype=torch.float32, attn_implementation="eager")
    randomize(model)
    return model.eval()


# No text holds RoBERTa's padding id (1): transformers would count its positions differently.
TEXTS = [[2 + token % 129 for token in random_prompt(length, 131)] for length in (1, 7, 30, 12)]


@pytest.mark.parametrize("name", CONFIGS)
def test_embeddings_of_a_ragged_batch(name: str, tmp_path: Path) -> None:
    model = made(transformers.AutoModel, CONFIGS[name]())
    got = run(author(model, tmp_path), TEXTS)
    with torch.inference_mode():
        wanted = np.stack([model(torch.tensor([text])).last_hidden_state[0].mean(0).numpy() for text in TEXTS])
    assert np.abs(wanted).max() > 0.5
    assert np.abs(got - wanted).max() < 1e-4


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_scores_of_a_ragged_batch(name: str, num_labels: int, tmp_path: Path) -> None:
    config = CONFIGS[name]()
    config.num_labels = num_labels
    model = made(transformers.AutoModelForSequenceClassification, config)
    graph = author(model, tmp_path)
    assert config_of(open_checkpoint(tmp_path)).spec.task == ("rerank" if num_labels == 1 else "classify")
    with torch.inference_mode():
        wanted = np.concatenate([model(torch.tensor([text])).logits.numpy() for text in TEXTS])
    assert np.abs(run(graph, TEXTS) - wanted).max() < 1e-4


def test_token_types_reach_the_model(tmp_path: Path) -> None:
    model = made(transformers.AutoModel, CONFIGS["bert"]())
    types = [[0] * (len(text) // 2) + [1] * (len(text) - len(text) // 2) for text in TEXTS]
    got = run(author(model, tmp_path), TEXTS, types)
    with torch.inference_mode():
        states = [
            model(torch.tensor([text]), token_type_ids=torch.tensor([kind])).last_hidden_state[0].mean(0).numpy()
            for text, kind in zip(TEXTS, types, strict=True)
        ]
    assert np.abs(got - np.stack(states)).max() < 1e-4


def write_sentence_files(folder: Path, pooling: str, normalize: bool) -> None:
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [{"path": f"{index}_{kind}", "type": f"x.{kind}"} for index, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(str(modules).replace("'", '"'))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(f'{{"{pooling}": true}}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')


@pytest.mark.parametrize(
    ("pooling", "reference"),
    [
        ("pooling_mode_cls_token", lambda states: states[0]),
        ("pooling_mode_mean_tokens", lambda states: states.mean(0)),
        ("pooling_mode_max_tokens", lambda states: states.max(0)),
    ],
)
def test_pooling_and_length_follow_the_models_own_files(
    pooling: str, reference: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    model = made(transformers.AutoModel, CONFIGS["bert"]())
    write_sentence_files(tmp_path, pooling, normalize=True)
    got = run(author(model, tmp_path), TEXTS)
    with torch.inference_mode():
        pooled = [reference(model(torch.tensor([text])).last_hidden_state[0].numpy()) for text in TEXTS]
    np.testing.assert_allclose(got, [vector / np.linalg.norm(vector) for vector in pooled], atol=1e-5)
    assert config_of(open_checkpoint(tmp_path)).spec.max_context_len == 40


# -- the real model -------------------------------------------------------------------------------------------------


SENTENCES = [
    "A cat sits on the mat.",
    "Ein Satz auf Deutsch, etwas länger als der erste.",
    "x",
    "stock prices fell " * 30,
]


@pytest.mark.slow
def test_minilm_equals_transformers(minilm_folder: Path, tmp_path: Path) -> None:
    version = import_checkpoint(minilm_folder, tmp_path / "minilm", precisions=("f32", "int8")).version_dir
    assert (version.parent / "config.pbtxt").read_text() == 'name: "minilm"\nbackend: "trtdecode"\n'
    spec = read_manifest(version).spec
    assert (spec.task, spec.max_context_len, spec.hidden_size) == ("embed", 256, 384)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder)
    texts = [tokenizer(text, truncation=True, max_length=256)["input_ids"] for text in SENTENCES]
    wanted = sentence_vectors(minilm_folder, SENTENCES)
    cosine = (run(version / "encoder.onnx", texts) * wanted).sum(1)
    assert np.abs(cosine - 1).max() < 1e-5
    cosine = (run(version / "encoder.int8.onnx", texts) * wanted).sum(1)
    assert cosine.min() > 0.998


# -- what scores mean -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_labels": 1}, ("rerank", (), "sigmoid")),
        ({"num_labels": 1, "problem_type": "regression"}, ("rerank", (), "identity")),
        ({"num_labels": 2}, ("classify", ("LABEL_0", "LABEL_1"), "softmax")),
        ({"id2label": {0: "a", 1: "b", 2: "c"}}, ("classify", ("a", "b", "c"), "softmax")),
        (
            {"id2label": {0: "a", 1: "b"}, "problem_type": "multi_label_classification"},
            ("classify", ("a", "b"), "sigmoid"),
        ),
        (
            {"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
            ("rerank", (), "identity"),
        ),
        (
            {"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            ("rerank", (), "sigmoid"),
        ),
    ],
)
def test_labels_and_activation_follow_the_models_own_files(
    config: dict[str, Any], expected: tuple[str, tuple[str, ...], str], tmp_path: Path
) -> None:
    write_classifier(tmp_path, **config)
    spec = config_of(open_checkpoint(tmp_path)).spec
    assert (spec.task, spec.labels, spec.score_activation) == expected


def test_an_unknown_activation_is_refused(tmp_path: Path) -> None:
    write_classifier(tmp_path, num_labels=1, sbert_ce_default_activation_function="torch.nn.Tanh")
    with pytest.raises(UnsupportedError, match=r"'torch.nn.Tanh' is not known; known: identity, sigmoid, softmax"):
        config_of(open_checkpoint(tmp_path))
