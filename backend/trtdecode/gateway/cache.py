"""Answers given again: exactly equal requests (`ResponseCache`), or prompts that mean the same (`SemanticCache`)."""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
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

    Vectors are f32 [dim], normalised here. A linear scan over at most `max_entries`: 1,000 x 384 takes ~0.1 ms.
    """

    def __init__(
        self, threshold: float, max_entries: int, ttl: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threshold = threshold
        self._max_entries = max_entries
        self._ttl = ttl
        self._clock = clock
        self._entries: list[tuple[float, str, npt.NDArray[np.float32], Any]] = []

    def get(self, scope: str, vector: npt.NDArray[np.float32]) -> tuple[Any, float] | None:
        """The most similar answer at or above the threshold, with its similarity."""
        now = self._clock()
        self._entries = [entry for entry in self._entries if now - entry[0] <= self._ttl]
        candidates = [entry for entry in self._entries if entry[1] == scope]
        if not candidates:
            return None
        scores = np.stack([entry[2] for entry in candidates]) @ _unit(vector)
        best = int(scores.argmax())
        return (candidates[best][3], float(scores[best])) if scores[best] >= self._threshold else None

    def put(self, scope: str, vector: npt.NDArray[np.float32], answer: Any) -> None:
        self._entries.append((self._clock(), scope, _unit(vector), answer))
        del self._entries[: max(0, len(self._entries) - self._max_entries)]


def _unit(vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    norm = float(np.linalg.norm(vector))
    return vector / np.float32(norm) if norm > 0 else vector
