"""Perplexity and next-token accuracy of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtdecode.errors import ConfigError
from trtdecode.evaluate.scoring import score_prompts
from trtdecode.replica import Replica


@dataclass(frozen=True, slots=True)
class LanguageScore:
    """A text as one configuration of a model sees it."""

    num_tokens: int  # that were predicted
    perplexity: float  # exp of the mean negative log-likelihood, in nats
    accuracy: float  # share of tokens that were the likeliest
    choices: tuple[int, ...]  # the likeliest token at each place

    def agreement(self, other: LanguageScore) -> float:
        """Share of places where both find the same token likeliest."""
        return sum(a == b for a, b in zip(self.choices, other.choices, strict=True)) / self.num_tokens


def cut_windows(ids: Sequence[int], window: int, bos_token_id: int | None) -> list[list[int]]:
    """Pieces in which every token is predicted exactly once, by at most `window` tokens before it; without a BOS that
    predicts it, the text's first token is not.

    Raises:
        ConfigError: too few tokens to predict one.
    """
    if bos_token_id is None:
        pieces = [list(ids[begin : begin + window + 1]) for begin in range(0, max(len(ids) - 1, 0), window)]
    else:
        pieces = [[bos_token_id, *ids[begin : begin + window]] for begin in range(0, len(ids), window)]
    if not pieces:
        raise ConfigError(f"the text has {len(ids)} tokens; at least one must be predicted: give a longer one")
    return pieces


def score_text(replica: Replica, text: str, window: int) -> LanguageScore:
    """Scores `text` in windows of `window` tokens.

    Raises:
        ConfigError: the text is too short.
    """
    tokenizer = replica.tokenizer
    bos = tokenizer.bos_token_id if tokenizer.adds_bos else None
    pieces = cut_windows(tokenizer.encode_text(text), window, bos)
    entries = [entry for piece in score_prompts(replica, pieces) for entry in piece if entry is not None]
    count = len(entries)
    return LanguageScore(
        num_tokens=count,
        perplexity=math.exp(-math.fsum(entry.logprob for entry in entries) / count),
        accuracy=sum(entry.rank == 1 for entry in entries) / count,
        choices=tuple(entry.top[0][0] for entry in entries),
    )
