"""Answers given again: exactly equal requests (`ResponseCache`), or prompts that mean the same (`SemanticCache`)."""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


def cacheable(sampling: dict[str, Any]) -> bool:
    """Only what would come out the same: greedy, or with a seed."""
    return sampling.get("temperature") == 0 or sampling.get("seed") is not None


def request_key(model: str, prompt: str | list[int], sampling: dict[str, Any], shape: dict[str, Any]) -> str:
    """Digest of all that decides the answer's tokens and its form."""
    text = json.dumps([model, prompt, sampling, shape], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class ResponseCache:
    """Whole answers by request digest: bounded, least recently used out first, nothing older than `ttl` seconds."""

    def __init__(self, max_entries: int, ttl: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_entries = max_entries
        self._ttl = ttl
        self._clock = clock
        self._entries: OrderedDict[str, tuple[float, Any]] = OrderedDict()

    def get(self, key: str) -> Any | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._clock() - entry[0] > self._ttl:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry[1]

    def put(self, key: str, answer: Any) -> None:
        if self._max_entries:
            self._entries[key] = (self._clock(), answer)
            self._entries.move_to_end(key)
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)


class SemanticCache:
    """Answers by cosine similarity of the prompt's embedding, among prompts with equal `scope` (model and options).

    Vectors are f32 [dim], normalised here. A linear scan over at most `max_entries`, the oldest out first.
    """

    def __init__(
        self, threshold: float, max_entries: int, ttl: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threshold = threshold
        self._max_entries = max_entries
        self._ttl = ttl
        self._clock = clock
        self._oldest_first: deque[tuple[float, str, int]] = deque()  # time, scope, row
        self._answers: dict[str, dict[int, Any]] = {}  # scope -> row -> answer
        self._vectors = np.empty((0, 0), np.float32)  # [max_entries, dim] from the first vector on
        self._free_rows = list(range(max_entries))

    def get(self, scope: str, vector: npt.NDArray[np.float32]) -> tuple[Any, float] | None:
        """The most similar answer at or above the threshold, with its similarity."""
        now = self._clock()
        while self._oldest_first and now - self._oldest_first[0][0] > self._ttl:
            self._drop_oldest()
        answers = self._answers.get(scope)
        if not answers or vector.shape != self._vectors.shape[1:]:
            return None
        rows = list(answers)
        # Not `@`: numpy's BLAS shares even this out to threads, which then spin for milliseconds.
        scores = np.einsum("ij,j->i", self._vectors[rows], _unit(vector))
        best = int(scores.argmax())
        return (answers[rows[best]], float(scores[best])) if scores[best] >= self._threshold else None

    def put(self, scope: str, vector: npt.NDArray[np.float32], answer: Any) -> None:
        if vector.shape != self._vectors.shape[1:]:  # the first, or the served encoder is another one now
            while self._oldest_first:
                self._drop_oldest()
            self._vectors = np.empty((self._max_entries, *vector.shape), np.float32)
        if not self._free_rows:
            self._drop_oldest()
        row = self._free_rows.pop()
        self._vectors[row] = _unit(vector)
        self._answers.setdefault(scope, {})[row] = answer
        self._oldest_first.append((self._clock(), scope, row))

    def _drop_oldest(self) -> None:
        _, scope, row = self._oldest_first.popleft()
        del self._answers[scope][row]
        if not self._answers[scope]:
            del self._answers[scope]
        self._free_rows.append(row)


def _unit(vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    norm = float(np.sqrt(np.einsum("i,i", vector, vector)))
    return vector / np.float32(norm) if norm > 0 else vector
