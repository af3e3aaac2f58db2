"""Notices a step that does not come back, from a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Watchdog:
    """Calls `on_slow(seconds)` once for each step that runs longer than `limit_ms`; 0 turns it off."""

    def __init__(self, limit_ms: float, on_slow: Callable[[float], None]) -> None:
        self._limit = limit_ms / 1000
        self._on_slow = on_slow
        self._began: float | None = None
        self._reported: float | None = None
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def step_begins(self) -> None:
        self._began = time.monotonic()

    def step_ends(self) -> None:
        self._began = None

    def start(self) -> None:
        if self._limit and self._thread is None:
            self._is_stopping.clear()
            self._thread = threading.Thread(target=self._watch, name="trtdecode-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread. Idempotent."""
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        while not self._is_stopping.wait(self._limit / 4):
            began = self._began
            if began is None or began == self._reported:
                continue
            seconds = time.monotonic() - began
            if seconds > self._limit:
                self._reported = began
                self._on_slow(seconds)
