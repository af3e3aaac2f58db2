"""A worker that makes each call when its result is asked for: the latest moment, and always the same one."""

from __future__ import annotations

from collections.abc import Callable

from trtdecode.overlap import Outcome


class DeferredWorker:
    """Implements `overlap.Worker` without a thread."""

    def __init__(self) -> None:
        self._call: Callable[[], Outcome] | None = None

    def begin(self, call: Callable[[], Outcome]) -> None:
        assert self._call is None, "two steps in flight"
        self._call = call

    def result(self) -> Outcome:
        call, self._call = self._call, None
        assert call is not None, "no step in flight"
        return call()

    def close(self) -> None:
        pass
