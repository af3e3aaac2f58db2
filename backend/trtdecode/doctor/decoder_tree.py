"""The decision tree of a generating model: what bounds it, asked in the order in which one cause hides another.

something broken?      steps fail, stub restarted, watchdog        -> faults: nothing below means much
nothing to do?         no request inside                           -> idle
no token for seconds?  requests inside, none comes out             -> stalled
KV blocks short?       preemptions, or a queue beside a full pool  -> kv
waiting?               while steps are small, or refused           -> queue
executor waits?        requests run, and the executor does not     -> host
held by Triton?        before the backend sees a request           -> queue
else the executor bounds: many tokens a step                       -> compute
                          few tokens a step                        -> memory bandwidth
"""

from __future__ import annotations

from trtdecode.doctor.finding import Finding, Limits, Question, is_broken
from trtdecode.doctor.readings import Readings


def is_idle(r: Readings, limits: Limits) -> Finding | None:
    inside = [*r.gauge("trtdecode_requests_running"), *r.gauge("trtdecode_requests_waiting")]
    if any(inside) or r.gain("trtdecode_generation_tokens_total"):
        return None
    evidence = [f"no request ran or waited in {r.seconds:.1f} s, no token was made"]
    refused = r.gain("trtdecode_requests_refused_total")
    if refused:
        return Finding(
            "idle",
            [*evidence, f"{refused:g} requests were refused"],
            "the requests do not get in: the label `error` of trtdecode_requests_refused_total says why",
        )
    return Finding("idle", evidence, "send load; if clients wait nevertheless, look between them and Triton")


def is_stalled(r: Readings, limits: Limits) -> Finding | None:
    if r.gain("trtdecode_generation_tokens_total") or r.gain("trtdecode_steps_total"):
        return None
    evidence = [
        f"{r.mean('trtdecode_requests_running'):.0f} requests run and {r.mean('trtdecode_requests_waiting'):.0f} wait, "
        f"and no step ended in {r.seconds:.1f} s"
    ]
    return Finding(
        "stalled", evidence, "a step hangs: the flight recorder's file in the log names it; `trtdecode drain` ends it"
    )


def is_kv_short(r: Readings, limits: Limits) -> Finding | None:
    total = r.mean("trtdecode_kv_blocks_total")
    used = r.mean("trtdecode_kv_blocks_used") / total if total else 0.0
    preemptions = r.gain("trtdecode_preemptions_total")
    is_full = used >= limits.full_pool and _waits(r, limits)
    if not preemptions and not is_full:
        return None
    evidence = [f"{used:.0%} of {total:.0f} KV blocks are in use", _queue_line(r)]
    if preemptions:
        evidence.insert(0, f"{preemptions:g} preemptions in {r.seconds:.1f} s: their tokens are computed again")
    return Finding(
        "kv",
        evidence,
        "raise kv_cache_bytes; else take a smaller kv_cache_precision, lower max_num_seqs, or add a replica",
    )


def is_queued(r: Readings, limits: Limits) -> Finding | None:
    refused = r.gain("trtdecode_requests_refused_total:QueueFull")
    step = r.histogram_mean("trtdecode_step_tokens")
    if step >= limits.ridge_tokens or not (refused or _waits(r, limits)):
        return None  # with full steps a queue is only what the next questions' bottleneck looks like from outside
    evidence = [_queue_line(r), f"{r.mean('trtdecode_requests_running'):.1f} run, and KV blocks are left"]
    if refused:
        evidence.append(f"{refused:g} requests were refused: the queue is full")
    return Finding(
        "queue",
        evidence,
        f"raise max_num_seqs: a step has {step:.1f} tokens, and up to about {limits.ridge_tokens:g} cost hardly more",
    )


def is_host_bound(r: Readings, limits: Limits) -> Finding | None:
    running = r.share("trtdecode_requests_running", bool)
    busy = r.gain("trtdecode_execute_seconds_sum") / r.seconds
    if running < limits.partly_idle and busy < limits.busy_executor:
        return Finding(
            "idle",
            [f"requests ran at {running:.0%} of the scrapes, the executor was busy {busy:.0%} of the time"],
            "nothing is short: the load is too small to bound anything",
        )
    if busy >= limits.busy_executor * running:
        return None
    evidence = [
        f"requests ran {running:.0%} of the time, the executor {busy:.0%}: the rest is the loop and the machine"
    ]
    cpu = r.mean("nv_cpu_utilization")
    if cpu:
        evidence.append(f"the machine's cores are {cpu:.0%} busy")
    return Finding(
        "host",
        evidence,
        "keep overlap on; give the process more cores or a quieter machine; fewer requests with logprobs, grammars or "
        "stop strings; or run a second instance of the model",
    )


def is_held_by_triton(r: Readings, limits: Limits) -> Finding | None:
    requests = r.gain("nv_inference_request_success")
    held = r.gain("nv_inference_queue_duration_us") / requests / 1e6 if requests else 0.0
    if held < limits.triton_queue_s:
        return None
    return Finding(
        "queue",
        [f"Triton held each request {held * 1000:.0f} ms before the backend saw it"],
        "remove queue policy and delay from dynamic_batching in config.pbtxt: the backend batches by itself",
    )


def bounds_executor(r: Readings, limits: Limits) -> Finding | None:
    tokens = r.histogram_mean("trtdecode_step_tokens")
    seconds = r.histogram_mean("trtdecode_execute_seconds")
    evidence = [f"a step has {tokens:.1f} tokens and takes the executor {seconds * 1000:.1f} ms"]
    if _waits(r, limits):
        evidence.append(_queue_line(r))
    tensor, memory = (r.mean(name) for name in ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE"))
    if tensor or memory:
        evidence.append(f"the GPU's tensor cores are {tensor:.0%} active, its memory {memory:.0%}")
        is_compute = tensor > memory
    else:
        evidence.append(
            f"below about {limits.ridge_tokens:g} tokens a step reads weights most of its time, above it multiplies"
        )
        is_compute = tokens >= limits.ridge_tokens
    if is_compute:
        return Finding(
            "compute",
            evidence,
            "raise the prefix hit rate, shorten prompts, or take a precision with faster matmuls (fp8, int8); lower "
            "max_num_batched_tokens if only inter-token latency matters; else a faster device or a replica",
        )
    return Finding(
        "memory bandwidth",
        evidence,
        "send more requests at a time: the same reading serves them all; else smaller weights (int8, int4)",
    )


DECODER_QUESTIONS: tuple[Question, ...] = (
    is_broken,
    is_idle,
    is_stalled,
    is_kv_short,
    is_queued,
    is_host_bound,
    is_held_by_triton,
    bounds_executor,
)


def _waits(r: Readings, limits: Limits) -> bool:
    return r.share("trtdecode_requests_waiting", bool) >= limits.waiting_share


def _queue_line(r: Readings) -> str:
    queue, ttft = (r.histogram_mean(f"trtdecode_{name}_seconds") for name in ("queue", "time_to_first_token"))
    line = f"{r.mean('trtdecode_requests_waiting'):.1f} requests wait on average"
    return f"{line}; {queue * 1000:.0f} ms of {ttft * 1000:.0f} ms to the first token is waiting" if ttft else line
