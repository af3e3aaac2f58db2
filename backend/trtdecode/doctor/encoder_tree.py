"""The decision tree of an encoder, from Triton's own figures of its batcher and ours of the executor.

    something broken?        runs of the executor fail                     -> faults
    nothing to do?           no request came in, none waits                -> idle
    no answer for seconds?   requests wait, none is answered               -> stalled
    held back?               requests wait and the instance is idle        -> delay (max_queue_delay_microseconds)
    left out of a batch?     waiting takes longer than a whole batch does,
                             and batches are small                         -> batch size (max_batch_size)
    little load?             the instance is idle half of the time         -> idle
    executor waits?          the instance works and the executor does not  -> host
    else                                                                   -> compute

What arrives while a batch runs is in the next one, unless that is full: so nobody waits for much longer than one batch
takes but where max_batch_size cuts batches short.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from trtdecode.doctor.finding import Finding, Limits, Question, is_broken
from trtdecode.doctor.readings import Readings


class _Batches(NamedTuple):
    """What batches were like; times in seconds."""

    texts: float  # a batch
    tokens: float  # a run of the executor
    wait: float  # of a request, in Triton's queue
    compute: float  # of the batch that a request was in: the stub's whole work
    instance_busy: float  # share of the time in which the stub had a batch
    executor_busy: float  # share of the time in which the executor ran

    @classmethod
    def seen(cls, r: Readings) -> _Batches:
        requests = r.gain("nv_inference_request_success") or 1.0
        executions = r.gain("nv_inference_exec_count")
        compute = r.gain("nv_inference_compute_infer_duration_us") / requests / 1e6
        return cls(
            texts=r.gain("nv_inference_count") / executions if executions else 0.0,
            tokens=r.histogram_mean("trtdecode_step_tokens"),
            wait=r.gain("nv_inference_queue_duration_us") / requests / 1e6,
            compute=compute,
            instance_busy=min(1.0, executions * compute / r.seconds),
            executor_busy=r.gain("trtdecode_execute_seconds_sum") / r.seconds,
        )

    @property
    def line(self) -> str:
        return f"a batch has {self.texts:.1f} texts and takes {self.compute * 1000:.1f} ms"

    @property
    def wait_line(self) -> str:
        return f"a request waits {self.wait * 1000:.1f} ms for it"


class _Said(NamedTuple):
    """What config.pbtxt says, as the backend logs it at load."""

    max_batch_size: int
    delay_us: int

    @classmethod
    def by_log(cls, r: Readings) -> _Said | None:
        """Of the last load that the log has; None without a log."""
        load = re.compile(rf"\b{re.escape(r.model)}: .* max_batch_size (\d+), dynamic_batching (.*), parameters ")
        found = [match for line in r.log_lines if (match := load.search(line))]
        if not found:
            return None
        delay = re.search(r"'max_queue_delay_microseconds': '?(\d+)", found[-1][2])
        return cls(int(found[-1][1]), int(delay[1]) if delay else 0)

    @property
    def line(self) -> str:
        return f"the log says max_batch_size {self.max_batch_size}, max_queue_delay_microseconds {self.delay_us}"


def is_idle(r: Readings, limits: Limits) -> Finding | None:
    if _answered(r) or any(r.gauge("nv_inference_pending_request_count")):
        return None
    evidence = [f"no request was answered and none waited in {r.seconds:.1f} s"]
    return Finding("idle", evidence, "send load; if clients wait nevertheless, look between them and Triton")


def is_stalled(r: Readings, limits: Limits) -> Finding | None:
    if _answered(r):
        return None
    pending = r.mean("nv_inference_pending_request_count")
    evidence = [f"{pending:.1f} requests wait on average, and none was answered in {r.seconds:.1f} s"]
    return Finding("stalled", evidence, "a batch hangs, or takes longer than that: watch for longer, read the log")


def is_delayed(r: Readings, limits: Limits) -> Finding | None:
    batches, said = _Batches.seen(r), _Said.by_log(r)
    if batches.instance_busy >= limits.busy_executor or batches.wait < max(0.001, batches.compute / 2):
        return None
    if said is not None and not said.delay_us:
        return None  # bursts: the next question
    evidence = [
        f"requests wait {batches.wait * 1000:.1f} ms, and the instance works {batches.instance_busy:.0%} of the time",
        batches.line,
        *([said.line] if said else []),
    ]
    return Finding(
        "delay",
        evidence,
        "lower max_queue_delay_microseconds of dynamic_batching, or a preferred_batch_size that this load does not "
        "fill: without a delay what arrives while a batch runs is the next one. If it is 0, requests come in bursts: "
        "raise max_batch_size",
    )


def is_batch_limited(r: Readings, limits: Limits) -> Finding | None:
    batches = _Batches.seen(r)
    if batches.wait < limits.batch_waits * batches.compute or batches.tokens >= limits.full_run_tokens:
        return None
    said = _Said.by_log(r)
    evidence = [batches.line, f"{batches.wait_line}: longer than one takes, so batches left it out"]
    evidence += [said.line] if said else []
    return Finding(
        "batch size",
        evidence,
        f"raise max_batch_size above {batches.texts:.0f} (and preferred_batch_size with it): a run of the executor has "
        f"{batches.tokens:.0f} tokens, and more of them cost less each",
    )


def is_little_load(r: Readings, limits: Limits) -> Finding | None:
    busy = _Batches.seen(r).instance_busy
    if busy >= limits.partly_idle:
        return None
    evidence = [f"the instance worked {busy:.0%} of the time"]
    return Finding("idle", evidence, "nothing is short: the load is too small to bound anything")


def is_host_bound(r: Readings, limits: Limits) -> Finding | None:
    batches = _Batches.seen(r)
    if batches.executor_busy >= limits.busy_executor * batches.instance_busy:
        return None
    evidence = [
        f"the instance works {batches.instance_busy:.0%} of the time and its executor {batches.executor_busy:.0%}: the "
        "rest is tokenising and tensors",
        batches.line,
    ]
    return Finding("host", evidence, "send input_ids instead of texts, or run a second instance of the model")


def bounds_executor(r: Readings, limits: Limits) -> Finding | None:
    batches = _Batches.seen(r)
    seconds = r.histogram_mean("trtdecode_execute_seconds")
    evidence = [
        f"the executor is busy {batches.executor_busy:.0%} of the time: {batches.tokens:.0f} tokens a run, "
        f"{seconds * 1000:.1f} ms",
        f"{batches.line}; {batches.wait_line}",
    ]
    more = "" if batches.texts >= 2 else "send more requests at a time: batches of one are the dearest; else "
    return Finding(
        "compute",
        evidence,
        f"{more}shorten or truncate texts, take a cheaper compute_precision, or a faster device or a replica",
    )


ENCODER_QUESTIONS: tuple[Question, ...] = (
    is_broken,
    is_idle,
    is_stalled,
    is_delayed,
    is_batch_limited,
    is_little_load,
    is_host_bound,
    bounds_executor,
)


def _answered(r: Readings) -> float:
    return r.gain("nv_inference_request_success") + r.gain("trtdecode_steps_total")
