"""What sampling remembers of one request between steps: kept up to date by the new tokens only.

The state lives on `request.sampler_state`. Preemption does not touch it, because the output stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trtdecode.request import Request
from trtdecode.sampling.stages import Ids, RowEdits
from trtdecode.sampling.weights import FloatRow


class TokenCounts:
    """Which tokens a request has seen, and how often each is in its output.

    `ids` and `counts` are views of the first `len` slots: prompt tokens first (count 0), then new ones as they come.
    """

    def __init__(self, prompt_ids: list[int]) -> None:
        unique = np.unique(np.asarray(prompt_ids, np.int32))
        self._slots: dict[int, int] = {int(token): slot for slot, token in enumerate(unique)}
        self._ids: Ids = unique
        self._counts: Ids = np.zeros(len(unique), np.int32)
        self._num_seen = 0  # output tokens taken so far

    @property
    def ids(self) -> Ids:
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> Ids:
        return self._counts[: len(self._slots)]

    def catch_up(self, output_ids: list[int]) -> None:
        """Takes the output tokens that came since the last call."""
        for token in output_ids[self._num_seen :]:
            slot = self._slots.setdefault(token, len(self._slots))
            if slot == len(self._ids):
                self._grow()
            self._ids[slot] = token
            self._counts[slot] += 1
        self._num_seen = len(output_ids)

    def _grow(self) -> None:
        room = max(64, len(self._ids))
        self._ids = np.concatenate((self._ids, np.empty(room, np.int32)))
        self._counts = np.concatenate((self._counts, np.zeros(room, np.int32)))


class SamplerState:
    """Turns a request's parameters and tokens into the edits of its next row."""

    def __init__(self, request: Request, stop_ids: frozenset[int]) -> None:
        params = request.params
        self.counts = TokenCounts(request.prompt_ids) if params.penalized else None
        self.bias_ids: Ids = np.array([token for token, _ in params.logit_bias], np.int32)
        self.bias_values: FloatRow = np.array([bias for _, bias in params.logit_bias], np.float32)
        self._stop_ids = sorted(stop_ids | set(params.stop_token_ids)) if params.min_tokens else []
        self._bad_words = request.bad_word_ids
        self.native_task: Any = None  # native_rows.py's object for this request
        #: No edit at any step: the row of the executor is read in place.
        self.is_plain = not (
            params.penalized or params.logit_bias or params.min_tokens or self._bad_words or request.guide is not None
        )

    def edits(self, request: Request) -> RowEdits:
        """The edits for the token after `request.output_ids`."""
        edits = RowEdits(bias_ids=self.bias_ids, bias_values=self.bias_values)
        banned = self._banned(request)
        if banned:
            edits.banned_ids = np.array(banned, np.int32)
        if request.guide is not None:
            edits.mask = request.guide.mask
        if self.counts is not None:
            self.counts.catch_up(request.output_ids)
            edits.seen_ids, edits.seen_counts = self.counts.ids, self.counts.counts
        return edits

    def _banned(self, request: Request) -> list[int]:
        """Last tokens of bad words whose other tokens end the output, and stop tokens until min_tokens."""
        output = request.output_ids
        must_go_on = len(output) < request.params.min_tokens and not _is_complete(request)
        banned = list(self._stop_ids) if must_go_on else []
        for word in self._bad_words:
            head = len(word) - 1
            if head == 0 or (len(output) >= head and tuple(output[-head:]) == word[:-1]):
                banned.append(word[-1])
        return banned


def _is_complete(request: Request) -> bool:
    """A grammar that allows nothing more ends the text, whatever min_tokens says."""
    return request.guide is not None and bool(request.guide.is_complete)
