"""OverlappedLoop: the same steps as `Loop`, with the host's work hidden behind the executor's.

    executor   |== step n ===============================|== step n+1 ==========
    loop       | emit n-1 | prepare n | schedule, build n+1 | sample n, launch n+1 | emit n | ...

When step n+1 is scheduled, the tokens of step n are not known. So its sequences are assumed to go on: their next token
gets a place in the batch, and its id is filled in just before the launch. A sequence that turns out to have ended in
step n leaves a dead row in step n+1, whose result is dropped. Dead rows write into blocks that are free again; that is
harmless, because steps run in order: whoever gets such a block writes it in a later step, before reading it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trtdecode.config import ServingConfig
from trtdecode.executor.base import Batch, BatchResult, Executor
from trtdecode.loop import Loop
from trtdecode.manifest import ModelSpec
from trtdecode.protocols import Sampler
from trtdecode.request import Request, RequestState
from trtdecode.scheduler.batch import BatchFromSchedule, fill_pending
from trtdecode.scheduler.scheduler import Schedule

log = logging.getLogger(__name__)

Outcome = BatchResult | Exception

_LOOK_S = 0.02  # how often ends are looked for while a step runs: a step that hangs must not hold its requests
_CLOSE_S = 30.0


class Worker(Protocol):
    """Runs one call at a time, elsewhere or later."""

    def begin(self, call: Callable[[], Outcome]) -> None:
        """Starts a call; the last one's result has been taken."""
        ...

    def result(self, timeout: float | None) -> Outcome | None:
        """The result of the call begun last; None if it is still running after `timeout` seconds (None: wait)."""
        ...

    def close(self) -> None:
        """Ends the worker. Idempotent."""
        ...


class ThreadWorker:
    """One thread that makes all executor calls."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Outcome] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, call: Callable[[], Outcome]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trtdecode-executor", daemon=True)
            self._thread.start()
        self._calls.put(call)

    def result(self, timeout: float | None) -> Outcome | None:
        try:
            return self._results.get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join(_CLOSE_S)
            self._thread = None

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            self._results.put(call())


@dataclass(slots=True)
class _Flight:
    plan: Schedule
    batch: Batch


class OverlappedLoop(Loop):
    """`Loop` with one step in flight. The executor is called from the worker's thread only.

    Args:
        worker: default a thread; the simulation defers calls to the last moment instead, which also shows that no
            buffer of a batch in flight is touched.
    """

    def __init__(self, *args: Any, worker: Worker | None = None, **kwargs: Any) -> None:
        self._worker = worker or ThreadWorker()
        super().__init__(*args, **kwargs)

    def _reset(self) -> None:
        super()._reset()
        self._spare_builder = self._make_builder()
        self._flight: _Flight | None = None

    def step(self) -> bool:
        """One turn: emits step n-1 and prepares step n+1 while step n runs, then takes in n and launches n+1."""
        flight = self._flight
        is_busy = self._emitter.flush() or flight is not None
        if flight is not None:
            self._prepare(flight.plan)
        self._intake()
        plan = self.scheduler.schedule(self.clock())
        batch = None if plan is None else self._build(plan, self._next_builder())
        if flight is not None:
            outcome = self._await_result()
            self._flight = None
            self._apply(flight.plan, outcome)
        if plan is not None and batch is not None:
            self._launch(plan, batch)
        return is_busy or plan is not None

    def _prepare(self, plan: Schedule) -> None:
        """Grammar masks of the step in flight. What goes wrong here goes wrong again in `sample`, which handles it."""
        try:
            self._sampler.prepare([r for r in plan.sampled if r.state is not RequestState.FINISHED])
        except Exception:
            log.warning("preparing the sampler failed", exc_info=True)

    def _await_result(self) -> Outcome:
        """Waits for the step in flight; lets arrivals in and ends what is cancelled or late meanwhile."""
        while (outcome := self._worker.result(_LOOK_S)) is None:
            self._intake()
            self._emitter.flush()
            self._answer_inspections()
        return outcome

    def _next_builder(self) -> BatchFromSchedule:
        self._builder, self._spare_builder = self._spare_builder, self._builder
        return self._builder

    def _launch(self, plan: Schedule, batch: Batch) -> None:
        if not plan.swap_outs and all(request.state is RequestState.FINISHED for request in plan.requests):
            return  # only dead rows: nobody waits for this step
        fill_pending(batch, plan)
        self._worker.begin(lambda: self._execute(batch))
        self._flight = _Flight(plan, batch)

    def _forget(self, requests: Sequence[Request]) -> None:
        self._land()
        super()._forget(requests)

    def stop(self) -> None:
        super().stop()
        self._land()
        self._worker.close()

    def _land(self) -> None:
        """Waits for the step in flight and drops its result."""
        if self._flight is not None:
            if self._worker.result(_CLOSE_S) is None:
                log.error("the executor has not come back after %g s", _CLOSE_S)
            self._flight = None


def make_loop(executor: Executor, sampler: Sampler, config: ServingConfig, spec: ModelSpec) -> Loop:
    """The loop that `config.overlap` asks for; both give the same tokens."""
    return (OverlappedLoop if config.overlap else Loop)(executor, sampler, config, spec)
