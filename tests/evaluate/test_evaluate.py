"""Perplexity and multiple choice against transformers, on a random model; and the command."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from builder.engine.byte_tokenizer import byte_tokenizer
from builder.tiny_models import LLAMA_SIZES, model_logits, save_model
from trtbuild.pipeline import import_checkpoint
from trtdecode.cli import main
from trtdecode.config import ServingConfig
from trtdecode.errors import ConfigError
from trtdecode.evaluate.choices import Question, read_questions, score_questions
from trtdecode.evaluate.language import LanguageScore, cut_windows, score_text
from trtdecode.evaluate.run import Variant, shipped_questions
from trtdecode.replica import Replica

TEXT = "A text of some length, grüße; it is cut in windows. " * 3
POOL = {"kv_cache_bytes": "16MiB"}


@pytest.fixture(scope="module")
def model_and_repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("evaluate")
    model = save_model(transformers.LlamaConfig(**{**LLAMA_SIZES, "vocab_size": 288}, eos_token_id=287), folder / "hf")
    (folder / "hf" / "tokenizer.json").write_text(json.dumps(byte_tokenizer()), "utf-8")
    import_checkpoint(folder / "hf", folder / "repository" / "tiny", precisions=("f32", "int8"))
    return model, folder / "repository"


@pytest.fixture(scope="module")
def replica(model_and_repository: tuple[Any, Path]) -> Iterator[Replica]:
    version_dir = model_and_repository[1] / "tiny" / "1"
    config = ServingConfig.from_parameters({**POOL, "precision": "f32", "max_num_batched_tokens": "64"})
    with Replica.load(version_dir, config) as made:
        yield made


def log_softmax(model: Any, ids: list[int]) -> np.ndarray:
    logits = model_logits(model, ids).astype(np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return result


def test_text_equals_transformers(model_and_repository: tuple[Any, Path], replica: Replica) -> None:
    model, ids, window = model_and_repository[0], replica.tokenizer.encode_text(TEXT), 50
    losses, hits, choices = [], [], []
    for begin in range(0, len(ids) - 1, window):
        piece = ids[begin : begin + window + 1]
        rows = log_softmax(model, piece)[:-1]
        losses += (-rows[np.arange(len(rows)), piece[1:]]).tolist()
        choices += rows.argmax(1).tolist()
        hits += (rows.argmax(1) == piece[1:]).tolist()
    score = score_text(replica, TEXT, window)
    assert score.num_tokens == len(ids) - 1 == len(losses)
    assert score.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-4)
    assert score.accuracy == np.mean(hits)
    assert score.choices == tuple(choices)


def test_windows_predict_every_token_once() -> None:
    assert cut_windows([1, 2, 3, 4, 5], 2, None) == [[1, 2, 3], [3, 4, 5]]
    assert cut_windows([1, 2, 3, 4], 2, None) == [[1, 2, 3], [3, 4]]
    assert cut_windows([1, 2, 3], 2, 9) == [[9, 1, 2], [9, 3]]
    with pytest.raises(ConfigError, match="1 tokens; at least one must be predicted"):
        cut_windows([1], 2, None)


def test_agreement() -> None:
    first, second = LanguageScore(4, 1.0, 1.0, (1, 2, 3, 4)), LanguageScore(4, 1.0, 1.0, (1, 2, 9, 4))
    assert (first.agreement(first), second.agreement(first)) == (1.0, 0.75)


def test_choices_equal_transformers(model_and_repository: tuple[Any, Path], replica: Replica) -> None:
    model = model_and_repository[0]
    continuations = (" blue", " a very long fish", " of")
    likelihoods = []
    for text in continuations:
        context, whole = b"The sky is", f"The sky is{text}".encode()
        rows = log_softmax(model, list(whole))
        likelihoods.append(sum(rows[place - 1, whole[place]] for place in range(len(context), len(whole))))
    best = int(np.argmax(likelihoods))
    best_norm = int(np.argmax([value / len(text[1:]) for value, text in zip(likelihoods, continuations, strict=True)]))
    assert best != best_norm, "the texts are chosen so"
    questions = [Question("The sky is", continuations, gold) for gold in range(3)] + [
        Question("The sky is ", tuple(text[1:] for text in continuations), best)  # the space is the continuation's
    ]
    scores = [score_questions(replica, [question]) for question in questions]
    assert [score.accuracy for score in scores] == [float(gold == best) for gold in (0, 1, 2, best)]
    assert [score.accuracy_norm for score in scores] == [float(gold == best_norm) for gold in (0, 1, 2, best)]
    together = score_questions(replica, questions)
    assert (together.num_questions, together.accuracy) == (4, 0.5)
    assert together.standard_error == 0.25


OURS = {"query": "The sky is", "choices": ["blue", "a fish"], "gold": 1}
LM_EVAL = {"doc_id": 0, "target": "1", "arguments": [["The sky is", " blue"], ["The sky is", " a fish"]], "acc": 1.0}
LM_EVAL_NEW = {
    "target": 1,
    "arguments": {
        "gen_args_0": {"arg_0": "The sky is", "arg_1": " blue"},
        "gen_args_1": {"arg_0": "The sky is", "arg_1": " a fish"},
    },
}


def test_every_form_of_a_question_reads_the_same(tmp_path: Path) -> None:
    renamed = {"question": OURS["query"], "choices": OURS["choices"], "answer": 1}
    path = tmp_path / "questions.jsonl"
    by_text = {**LM_EVAL, "target": "a fish"}
    path.write_text("\n\n".join(json.dumps(row) for row in (OURS, renamed, LM_EVAL, LM_EVAL_NEW, by_text)))
    assert read_questions(path) == [Question("The sky is", (" blue", " a fish"), 1)] * 5


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ["line 1", "not a multiple-choice question"]),
        (json.dumps({**OURS, "gold": 2}), ["the right choice is 2 of 2"]),
        (json.dumps({**OURS, "gold": "a bird"}), ["invalid literal", "a bird"]),
        (json.dumps({**OURS, "gold": None}), ["none of gold, answer, label, target"]),
        (json.dumps({**OURS, "choices": ["blue"]}), ["two or more choices"]),
        (json.dumps({**LM_EVAL, "arguments": [["a", " b"], ["c", " d"]]}), ["several contexts"]),
        ("", ["holds no question"]),
    ],
)
def test_what_is_no_question_is_refused_by_line(line: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError) as caught:
        read_questions(path)
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_shipped_questions_are_balanced() -> None:
    questions = read_questions(shipped_questions())
    assert len(questions) == 40
    assert [sum(question.gold == place for question in questions) for place in range(4)] == [10, 10, 10, 10]


def test_variants() -> None:
    variant = Variant.parse("precision=int8,kv_cache_precision=u8", ["kv_cache_bytes=1MiB", "precision=f32"])
    assert (variant.config.precision, variant.config.kv_cache_precision) == ("int8", "u8")
    assert variant.config.kv_cache_bytes == 1 << 20
    with pytest.raises(ConfigError, match="'int8' is not KEY=VALUE"):
        Variant.parse("int8")


def test_the_command(model_and_repository: tuple[Any, Path], replica: Replica, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "questions.jsonl").write_text(json.dumps(OURS))
    arguments = [
        *("eval", "--repository", str(model_and_repository[1]), "--set", "kv_cache_bytes=16MiB", "--window", "50"),
        *("--text", str(tmp_path / "text.txt"), "--choices", str(tmp_path / "questions.jsonl")),
        *("--json", str(tmp_path / "out.json")),
    ]
    assert main(arguments) == 0
    f32, int8 = json.loads((tmp_path / "out.json").read_text())
    assert (f32["variant"], int8["variant"]) == ("precision=f32", "precision=int8")
    score = score_text(replica, TEXT, 50)
    assert f32["perplexity"] == pytest.approx(score.perplexity, rel=1e-5)
    assert (f32["perplexity_ratio"], f32["agreement"], f32["num_questions"]) == (1.0, 1.0, 1)
    assert int8["perplexity_ratio"] == pytest.approx(int8["perplexity"] / f32["perplexity"])
    assert int8["perplexity"] != f32["perplexity"]
