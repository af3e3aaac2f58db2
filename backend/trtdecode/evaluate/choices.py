"""Multiple choice, scored as lm-evaluation-harness does: the continuation with the highest log-likelihood wins.

Two forms of a line are read:

    {"query": "The sky is", "choices": ["blue", "a fish"], "gold": 0}
    {"arguments": [["The sky is", " blue"], ["The sky is", " a fish"]], "target": 0, ...}

The second is what lm-eval writes with `--log_samples` (newer versions write `arguments` as an object of objects). Of
the first, `context` and `question` are other names of `query`, `answer` and `label` of `gold`; a space goes between.
The right choice is given by its index or by its text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtdecode.errors import ConfigError
from trtdecode.evaluate.scoring import score_prompts
from trtdecode.replica import Replica

_QUERY_KEYS, _GOLD_KEYS = ("query", "context", "question"), ("gold", "answer", "label", "target")


@dataclass(frozen=True, slots=True)
class Question:
    """A context and what may follow it."""

    context: str
    continuations: tuple[str, ...]
    gold: int  # index of the right one


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """Shares of questions answered rightly. Standard error: sqrt(p (1 - p) / n)."""

    num_questions: int
    accuracy: float  # by log-likelihood
    accuracy_norm: float  # by log-likelihood a character of the choice (lm-eval's acc_norm)

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.num_questions)


def read_questions(path: Path) -> list[Question]:
    """Raises ConfigError naming file and line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable ({error})") from error
    questions = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                questions.append(_question(json.loads(line)))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise ConfigError(f"{path}, line {number}: not a multiple-choice question ({error})") from error
    if not questions:
        raise ConfigError(f"{path}: holds no question")
    return questions


def _question(row: Mapping[str, Any]) -> Question:
    if "arguments" in row:
        pairs = _pairs(row["arguments"])
        contexts, continuations = {pair[0] for pair in pairs}, tuple(pair[1] for pair in pairs)
        if len(contexts) != 1:
            raise ValueError("its arguments have several contexts; only questions with one are read")
        context = contexts.pop()
    else:
        context = str(_first(row, _QUERY_KEYS))
        continuations = tuple(f" {choice}" for choice in row["choices"])
    if len(continuations) < 2 or not all(text.strip() for text in continuations):
        raise ValueError("needs two or more choices, none empty")
    return Question(context, continuations, _gold(_first(row, _GOLD_KEYS), continuations))


def _gold(value: Any, continuations: Sequence[str]) -> int:
    """The right choice's index, from an index (also as text) or the choice's own text."""
    texts = [text.strip() for text in continuations]
    index = texts.index(value.strip()) if isinstance(value, str) and value.strip() in texts else int(value)
    if not 0 <= index < len(texts):
        raise ValueError(f"the right choice is {index} of {len(texts)}")
    return index


def _pairs(arguments: Any) -> list[tuple[str, str]]:
    if isinstance(arguments, Mapping):  # {"gen_args_0": {"arg_0": context, "arg_1": continuation}, ...}
        arguments = [list(arguments[f"gen_args_{index}"].values()) for index in range(len(arguments))]
    return [(str(context), str(continuation)) for context, continuation in arguments]


def _first(row: Mapping[str, Any], keys: Sequence[str]) -> Any:
    for key in keys:
        if row.get(key) is not None:
            return row[key]
    raise KeyError(f"none of {', '.join(keys)}")


def score_questions(replica: Replica, questions: Sequence[Question]) -> ChoiceScore:
    """Asks for every continuation's log-likelihood. Raises RequestError for a question longer than the context."""
    cuts = [_cut(replica, question.context, text) for question in questions for text in question.continuations]
    scores = iter(score_prompts(replica, [ids for ids, _ in cuts]))
    sums = iter(
        [
            math.fsum(entry.logprob for entry in entries[begin:] if entry is not None)
            for (_, begin), entries in zip(cuts, scores, strict=True)
        ]
    )
    num_right = num_right_norm = 0
    for question in questions:
        likelihoods = [next(sums) for _ in question.continuations]
        lengths = [len(text.lstrip(" ")) for text in question.continuations]
        normed = [value / length for value, length in zip(likelihoods, lengths, strict=True)]
        num_right += likelihoods.index(max(likelihoods)) == question.gold
        num_right_norm += normed.index(max(normed)) == question.gold
    count = len(questions)
    return ChoiceScore(count, num_right / count, num_right_norm / count)


def _cut(replica: Replica, context: str, continuation: str) -> tuple[list[int], int]:
    """Ids of the whole, and where the continuation begins: after as many tokens as the context alone has, with its
    trailing spaces counted to the continuation, as lm-eval does."""
    stripped = context.rstrip(" ")
    whole = replica.encode(stripped + context[len(stripped) :] + continuation)
    begin = len(replica.tokenizer.encode(stripped)) if stripped else 0
    return whole, max(begin, 1)  # nothing predicts the first token
