"""A worker that makes each call when its result is asked for the second time: late, and always at the same moment."""

from __future__ import annotations

from collections.abc import Callable

from trtdecode.overlap import Outcome


class DeferredWorker:
    """Implements `overlap.Worker` without a thread."""

    def __init__(self) -> None:
        self._call: Callable[[], Outcome] | None = None
        self._has_been_asked = False

    def begin(self, call: Callable[[], Outcome]) -> None:
        assert self._call is None, "two steps in flight"
        self._call = call
        self._has_been_asked = False

    def result(self, timeout: float | None) -> Outcome | None:
        assert self._call is not None, "no step in flight"
        if timeout is not None and not self._has_been_asked:
            self._has_been_asked = True
            return None
        call, self._call = self._call, None
        return call()

    def close(self) -> None:
        pass
