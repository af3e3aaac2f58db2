"""The serving loop: one `step()` = schedule, execute, sample, emit.

`Loop.step` is the plain loop and the reference; `OverlappedLoop` (overlap.py) runs the same parts, but prepares the
next step and emits the last one while the executor works. All state belongs to the thread that steps; `submit`,
`drain` and `stop` may be called by any other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from trtdecode.config import ServingConfig
from trtdecode.emitter import Emitter
from trtdecode.errors import DeadlineExceeded, ExecutorFailed, RequestCancelled, RequestError
from trtdecode.executor.base import Batch, BatchResult, CacheLost, Executor
from trtdecode.kv_cache.block_map import block_map
from trtdecode.kv_cache.manager import KVCacheManager
from trtdecode.manifest import ModelSpec
from trtdecode.metrics import LoopMetrics
from trtdecode.protocols import Sampler
from trtdecode.recorder import Recorder
from trtdecode.request import FinishReason, Request, RequestState
from trtdecode.sampling.stop import check_token_stop
from trtdecode.scheduler.admission import Admission
from trtdecode.scheduler.batch import BatchFromSchedule, without_ended
from trtdecode.scheduler.scheduler import Schedule, Scheduler
from trtdecode.watchdog import Watchdog

log = logging.getLogger(__name__)

_POLL_S = 0.01  # how often cancellation and deadlines are looked at while nothing can run
_CANCEL_S = 30.0  # how long draining and stopping wait for a step that is running
_ABANDONED_JOIN_S = 1.0  # how long stopping waits for a thread that a drain has given up


class Loop:
    """Serves requests on one executor.

    Args:
        executor: runs the batches; stays the caller's to close.
        sampler: chooses tokens.
        config, spec: limits of the replica and of the model.
        clock: seconds; the clock of arrival times and deadlines. The simulation passes a virtual one.
    """

    def __init__(
        self,
        executor: Executor,
        sampler: Sampler,
        config: ServingConfig,
        spec: ModelSpec,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.metrics = LoopMetrics()
        self._executor = executor
        # The tests' own executors leave these out.
        self._chooses_tokens = getattr(executor, "chooses_tokens", False)
        self._num_host_blocks = getattr(executor, "num_host_blocks", 0)
        self._sampler = sampler
        self._config = config
        self._spec = spec
        self._eos_token_ids = frozenset(spec.eos_token_ids)
        self._reset()
        self.admission = Admission(config, spec, self.kv)
        self._live: dict[int, Request] = {}  # accepted and taken in, no final event yet
        self._cancel_all = False
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._wake = threading.Event()
        self._abandoned: list[Request] = []  # ended by a drain because a step did not
        self._inspections: deque[Future[dict[str, Any]]] = deque()
        self._watchdog = Watchdog(config.watchdog_ms, self._on_slow_step)

    def _reset(self) -> None:
        """An empty cache and no requests: the state that steps change."""
        config, spec = self._config, self._spec
        self.kv = KVCacheManager(
            self._executor.num_blocks,
            self._executor.block_size,
            max_num_seqs=config.max_num_seqs,
            max_context_len=min(config.max_context_len or spec.max_context_len, spec.max_context_len),
            max_step_tokens=config.max_num_batched_tokens,
            window=spec.common_window,
            num_host_blocks=self._num_host_blocks,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self.scheduler = Scheduler(
            self.kv, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens
        )
        self.recorder = Recorder(self.scheduler, spec, config.recorder_steps)
        self._builder = self._make_builder()
        self._emitter = Emitter(self._finish, self._closed)

    def _make_builder(self) -> BatchFromSchedule:
        return BatchFromSchedule(
            self.kv,
            max_num_seqs=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
        )

    # -- any thread -------------------------------------------------------------------------------------------------

    def submit(self, *requests: Request) -> None:
        """Accepts the requests (the samples of one call: all or none) and returns at once.

        Raises:
            InvalidRequest, QueueFull, Draining: no event will come. Otherwise each gets exactly one final event.
        """
        try:
            for request in requests:
                request.needs_logits = self._sampler.needs_logits(request)
                if self._chooses_tokens:
                    request.sampling_row = self._sampler.sampling_row(request)
            self.admission.submit(requests)
        except RequestError as error:
            self.metrics.labelled["trtdecode_requests_refused_total", type(error).__name__] += 1
            raise
        self._wake.set()

    def start(self) -> None:
        """Runs the loop on a thread of its own."""
        assert self._thread is None, "the loop is running"
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="trtdecode-loop", daemon=True)
        self._thread.start()
        self._watchdog.start()

    def drain(self, *, cancel: bool = False, timeout: float | None = None) -> bool:
        """Refuses new requests, then waits until all others have got their final event.

        That takes at most `timeout` + 30 s even if a step never ends (an executor stuck in native code): then this
        thread sends the final events, and the loop starts afresh should the step come back.

        Args:
            cancel: end them now instead of letting them finish.
            timeout: seconds to let them finish; those left then are cancelled, which takes a step.

        Returns:
            Whether all finished by themselves in time.
        """
        self.admission.close_door()
        if not cancel and self._wait_empty(timeout):
            return True
        self._cancel_all = True
        self._wake.set()
        if not self._wait_empty(_CANCEL_S):
            self._abandon()
        return False

    def _abandon(self) -> None:
        """Ends everything without the loop's thread, whose state (scheduler, cache) is left to that thread."""
        abandoned = [*list(self._live.values()), *self.admission.drop_arrivals()]
        log.error(
            "a step has not ended for %g s; %d requests end without it; flight recorder: %s",
            _CANCEL_S,
            len(abandoned),
            self.recorder.save(),
        )
        for request in abandoned:
            self._emitter.abandon(request, RequestCancelled("cancelled because the model is draining"))
        self._abandoned = abandoned

    def resume(self) -> None:
        """Takes new requests again after a drain that has ended."""
        self._cancel_all = False
        self.admission.open_door()

    def inspect(self, timeout: float = 1.0) -> dict[str, Any]:
        """The map of KV blocks; see `block_map`. The overlapped loop answers during a step, the plain one after it.

        Raises:
            TimeoutError: the step takes longer, or the loop's thread does not run.
        """
        future: Future[dict[str, Any]] = Future()
        self._inspections.append(future)
        self._wake.set()
        return future.result(timeout)

    def stop(self) -> None:
        """Ends what is still inside with a cancellation, then the loop's thread. Idempotent."""
        self.drain(cancel=True)
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_ABANDONED_JOIN_S if self._abandoned else _CANCEL_S)
            self._thread = None
        self._watchdog.stop()

    def _wait_empty(self, timeout: float | None) -> bool:
        if self._thread is not None:
            return self.admission.wait_empty(timeout)
        end = None if timeout is None else self.clock() + timeout
        while self.admission.num_inside and (end is None or self.clock() < end):
            self.step()
        return self.admission.num_inside == 0

    # -- the loop's thread ------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One turn. Returns whether there was anything to do."""
        self._intake()
        plan = self.scheduler.schedule(self.clock())
        if plan is not None:
            batch = self._build(plan, self._builder)
            self._apply(plan, self._execute(batch))
        return self._emitter.flush() or plan is not None

    def _intake(self) -> None:
        """Lets arrivals in; ends what was cancelled or is too late, waiting or running."""
        self.recorder.step_begins()
        now = self.clock()
        for request in self.admission.take():
            self._live[request.request_id] = request
            self.recorder.arrived(request)
            self.metrics.counters["trtdecode_requests_total"] += 1
            self.scheduler.add(request)
        for request in self.admission.cancelled():
            self._end(request, FinishReason.CANCELLED, RequestCancelled())
        for request in self.admission.expired(now):
            error = DeadlineExceeded(request.timeout_ms, request.state.value)
            self._end(request, FinishReason.ERROR, error)
        if self._cancel_all:
            for request in [*self.scheduler.running, *self.scheduler.waiting]:
                self._end(request, FinishReason.CANCELLED, RequestCancelled("cancelled because the model is draining"))

    def _build(self, plan: Schedule, builder: BatchFromSchedule) -> Batch:
        self.recorder.scheduled(plan)
        return builder.build(plan)

    def _execute(self, batch: Batch) -> BatchResult | Exception:
        started = time.perf_counter()
        try:
            return self._executor.execute(batch)
        except Exception as error:
            log.exception("the executor failed; the requests of its batch end")
            return error
        finally:
            self.metrics.observations["trtdecode_execute_seconds"].append(time.perf_counter() - started)

    def _apply(self, plan: Schedule, outcome: BatchResult | Exception) -> None:
        """Takes in what a step computed: tokens, stops, published blocks. If it failed, its requests end, no others."""
        if isinstance(outcome, Exception):
            if isinstance(outcome, CacheLost):
                self._lose_cache(plan, f"executor {self._executor.name}: {outcome}")
            else:
                self._fail(plan, f"executor {self._executor.name} raised {outcome!r}")
            return
        self.scheduler.update(plan)
        outcome = without_ended(plan, outcome)
        try:
            samples = self._sampler.sample(outcome, plan.sampled)
            self._take_prompt_logprobs(plan, outcome)
        except Exception as error:
            log.exception("the sampler failed; the requests of its batch end")
            self._fail(plan, f"sampler raised {error!r}")
            return
        now = self.clock()
        self.metrics.step_done(plan, now)
        self.recorder.updated(plan, samples)
        for row, row_error in samples.errors.items():
            self._end(plan.sampled[row], FinishReason.ERROR, row_error)
        emit = self._emitter.token
        for request, token_id, logprob in zip(plan.sampled, samples.token_ids, samples.logprobs, strict=True):
            if samples.errors and request.state is RequestState.FINISHED:
                continue
            reason = None
            if request.append(token_id, now, logprob):
                reason = check_token_stop(request, self._eos_token_ids)
                if reason is not None:
                    self._finish(request)
            emit(request, token_id, logprob, reason)

    def _take_prompt_logprobs(self, plan: Schedule, result: BatchResult) -> None:
        row = len(plan.sampled)
        for request, first, end in plan.prompt_ranges:
            num_top = request.params.prompt_logprobs
            assert num_top is not None and result.logits is not None
            logits = result.logits[row : row + end - first]
            row += end - first
            next_ids = request.prompt_ids[first + 1 : end + 1]
            request.add_prompt_logprobs(first + 1, self._sampler.prompt_logprobs(logits, next_ids, num_top))

    def _fail(self, plan: Schedule, text: str) -> None:
        self.metrics.counters["trtdecode_step_failures_total"] += 1
        self.recorder.failed(plan, text)
        for request in plan.requests:
            if request.state is not RequestState.FINISHED:
                self._end(request, FinishReason.ERROR, ExecutorFailed(text))
        self._lose_swapped(plan.swapped_out, text)

    def _lose_swapped(self, requests: Sequence[Request], text: str) -> None:
        """Their copies in the host pool may not have been made: who still waits is recomputed."""
        for request in requests:
            if request.swapped is not None:
                self.recorder.swap_lost(request)
                self.kv.drop_swapped(request)
            elif request.state is RequestState.RUNNING:  # already on its way back, in the step that comes next
                self._end(request, FinishReason.ERROR, ExecutorFailed(text))

    def _lose_cache(self, plan: Schedule, text: str) -> None:
        """Everything that runs ends, scheduled in this step or not; what waits has no blocks and goes on."""
        self._fail(plan, text)
        for request in list(self.scheduler.running):
            self._end(request, FinishReason.ERROR, ExecutorFailed(text))
        self._lose_swapped(self.scheduler.waiting, text)
        self.kv.pool.forget()
        self.recorder.cache_lost()

    def _end(self, request: Request, reason: FinishReason, error: RequestError) -> None:
        self._finish(request)
        self._emitter.end(request, reason, error)

    def _finish(self, request: Request) -> None:
        self.recorder.finished(request)
        self.scheduler.finish(request)
        self.admission.finished(request)

    def _closed(self, request: Request) -> None:
        self._live.pop(request.request_id, None)  # not there if it had not been taken in yet
        self.metrics.request_closed(request, self.clock())
        self.admission.left()

    def _run(self) -> None:
        was_busy = False
        while not self._is_stopping:
            self._wake.clear()
            if self._abandoned:
                self._forget(self._abandoned)
                self._abandoned = []
            self._watchdog.step_begins()
            try:
                is_busy = self.step()
                if was_busy and not is_busy and not self._live:
                    self.check_integrity()
            except Exception as error:
                is_busy = True
                self._recover(error)
            self._watchdog.step_ends()
            self.metrics.set_gauges(self.scheduler)
            self._answer_inspections()
            was_busy = is_busy
            if not is_busy:
                self._wake.wait(_POLL_S if self.admission.num_inside else None)

    def _answer_inspections(self) -> None:
        while self._inspections:
            self._inspections.popleft().set_result(block_map(self.kv, self.scheduler.running))

    def _recover(self, error: Exception) -> None:
        """The last resort, for faults of our own: whatever state steps left is dropped, every request that was taken
        in ends with an error, and the loop goes on with an empty cache."""
        self.metrics.counters["trtdecode_recoveries_total"] += 1
        log.error("a step failed and the loop starts afresh; flight recorder: %s", self.recorder.save(), exc_info=error)
        taken = list(self._live.values())
        self._forget(taken)
        for request in taken:
            if request.finish_reason is None:
                text = f"internal error in the loop: {error!r}"
                self._emitter.end(request, FinishReason.ERROR, ExecutorFailed(text))
        self._emitter.flush()

    def _forget(self, requests: Sequence[Request]) -> None:
        """Drops whatever state steps left; no step will look at these requests again."""
        self._reset()
        for request in requests:
            if request.state is not RequestState.FINISHED:
                self.admission.finished(request)
                request.finish()
            request.blocks = request.swapped = None

    def _on_slow_step(self, seconds: float) -> None:
        """Called by the watchdog's thread, once a slow step."""
        self.metrics.counters["trtdecode_watchdog_dumps_total"] += 1
        log.error("a step has been running for %.1f s; flight recorder: %s", seconds, self.recorder.save())

    def check_integrity(self) -> None:
        """Everything that must hold between two steps. Raises AssertionError."""
        self.scheduler.check_integrity()
