"""Where a step's time goes: wraps methods of a loop and adds up what each stage takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any


class Stopwatch:
    """Time spent in each stage, per step; a stage inside another is not counted twice.

    Args:
        clock: seconds. `time.thread_time` counts the thread's own CPU time, which a busy machine does not change;
            `time.perf_counter` counts what the step waited for as well.
    """

    def __init__(self, stages: Sequence[str], clock: Callable[[], float] = time.thread_time) -> None:
        self.steps: list[dict[str, float]] = []
        self._stages = stages
        self._clock = clock
        self._inner = 0.0

    def begin_step(self) -> None:
        self.steps.append(dict.fromkeys(self._stages, 0.0))

    def wrap(self, owner: Any, method: str, stage: str) -> None:
        """Times `owner.method` (an object's, or a class's for all its objects) as part of `stage`."""
        original: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            began = self._clock()
            try:
                return original(*args, **kwargs)
            finally:
                spent = self._clock() - began
                if self.steps:
                    self.steps[-1][stage] += spent - self._inner
                self._inner = outer + spent

        setattr(owner, method, timed)
