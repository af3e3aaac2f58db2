"""One model version under several configurations, on the same texts and questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from trtdecode.config import ServingConfig
from trtdecode.errors import ConfigError
from trtdecode.evaluate.choices import ChoiceScore, Question, score_questions
from trtdecode.evaluate.language import LanguageScore, score_text
from trtdecode.replica import Replica

#: Tokens that predict the next one at most; short enough for every model we know.
DEFAULT_WINDOW = 512


@dataclass(frozen=True, slots=True)
class Variant:
    """A configuration to evaluate."""

    name: str
    config: ServingConfig

    @classmethod
    def parse(cls, text: str, common: Sequence[str] = ()) -> Variant:
        """From "precision=int8,kv_cache_precision=u8", over `common` ones of the form KEY=VALUE.

        Raises:
            ConfigError: a part that is not KEY=VALUE, and as `ServingConfig.from_parameters`.
        """
        settings = {}
        for part in filter(None, [*common, *text.split(",")]):
            key, equals, value = part.partition("=")
            if not equals:
                raise ConfigError(f"variant {text!r}: {part!r} is not KEY=VALUE")
            settings[key.strip()] = value.strip()
        return cls(text or "default", ServingConfig.from_parameters(settings))


@dataclass(frozen=True, slots=True)
class VariantScore:
    """What came of one variant."""

    variant: str
    language: LanguageScore | None
    choices: ChoiceScore | None


def shipped_text() -> str:
    """The text that engine builds are compared on as well: prose, code and dialogue."""
    return resources.files("trtbuild.quantize").joinpath("data", "evaluation.txt").read_text("utf-8")


def shipped_questions() -> Path:
    """Our own questions, of school level: for comparing precisions of one model, not models."""
    return Path(__file__).with_name("data") / "choices.jsonl"


def evaluate(
    version_dir: Path,
    variants: Sequence[Variant],
    *,
    text: str | None,
    questions: Sequence[Question],
    window: int = DEFAULT_WINDOW,
    progress: Callable[[str], None] = lambda line: None,
) -> list[VariantScore]:
    """Loads each variant in turn and scores it.

    Args:
        text: None scores questions alone.
        questions: empty scores the text alone.

    Raises:
        LoadError: a variant cannot be loaded; the text is too short.
        RequestError: a window or a question does not fit the context.
    """
    scores = []
    for variant in variants:
        progress(f"{variant.name}: loading")
        with Replica.load(version_dir, variant.config) as replica:
            progress(f"{variant.name}: text")
            language = score_text(replica, text, window) if text is not None else None
            progress(f"{variant.name}: {len(questions)} questions")
            choices = score_questions(replica, questions) if questions else None
        scores.append(VariantScore(variant.name, language, choices))
    return scores


def as_rows(scores: Sequence[VariantScore]) -> list[dict[str, Any]]:
    """Plain figures; agreement and ratio are against the first variant."""
    rows = []
    for score in scores:
        row: dict[str, Any] = {"variant": score.variant}
        first = scores[0].language
        if score.language is not None and first is not None:
            row |= {
                "num_tokens": score.language.num_tokens,
                "perplexity": score.language.perplexity,
                "perplexity_ratio": score.language.perplexity / first.perplexity,
                "next_token_accuracy": score.language.accuracy,
                "agreement": score.language.agreement(first),
            }
        if score.choices is not None:
            row |= {
                "num_questions": score.choices.num_questions,
                "choice_accuracy": score.choices.accuracy,
                "choice_accuracy_norm": score.choices.accuracy_norm,
                "choice_standard_error": score.choices.standard_error,
            }
        rows.append(row)
    return rows
