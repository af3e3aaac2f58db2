"""What the loop counts, in plain Python; how it reaches Prometheus is the sink's business.

The loop's thread only adds to integers and lists. `publish` hands a sink what has changed since the last call; call it
a few times a second, from any one thread.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trtdecode.request import Request
    from trtdecode.scheduler.scheduler import Schedule, Scheduler

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
_BATCH_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric family. Counters end in _total; times are in seconds."""

    name: str
    kind: str  # "counter", "gauge" or "histogram"
    help: str
    buckets: tuple[float, ...] = ()
    label: str = ""  # name of the one label, if it has one


METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("trtdecode_requests_running", "gauge", "Sequences in the running batch."),
    MetricSpec("trtdecode_requests_waiting", "gauge", "Accepted sequences waiting for their (next) start."),
    MetricSpec("trtdecode_kv_blocks_total", "gauge", "KV blocks that sequences can have."),
    MetricSpec("trtdecode_kv_blocks_used", "gauge", "KV blocks referenced by running sequences."),
    MetricSpec("trtdecode_kv_blocks_cached", "gauge", "Unreferenced KV blocks kept for a prefix hit."),
    MetricSpec("trtdecode_host_blocks", "gauge", "Blocks of the host pool for preempted sequences."),
    MetricSpec("trtdecode_host_blocks_used", "gauge", "Host blocks that hold K/V of preempted sequences."),
    MetricSpec("trtdecode_requests_total", "counter", "Sequences accepted."),
    MetricSpec(
        "trtdecode_requests_refused_total", "counter", "Requests refused at admission, by error.", label="error"
    ),
    MetricSpec("trtdecode_requests_finished_total", "counter", "Sequences ended, by reason.", label="reason"),
    MetricSpec("trtdecode_prompt_tokens_total", "counter", "Prompt tokens of started sequences."),
    MetricSpec("trtdecode_generation_tokens_total", "counter", "Tokens generated."),
    MetricSpec("trtdecode_preemptions_total", "counter", "Running sequences put back to the queue for want of blocks."),
    MetricSpec("trtdecode_swapped_out_blocks_total", "counter", "KV blocks copied to the host pool."),
    MetricSpec("trtdecode_swapped_in_blocks_total", "counter", "KV blocks copied back from the host pool."),
    MetricSpec("trtdecode_prefix_cache_query_tokens_total", "counter", "Tokens looked up in the prefix cache."),
    MetricSpec("trtdecode_prefix_cache_hit_tokens_total", "counter", "Tokens found in the prefix cache."),
    MetricSpec("trtdecode_kv_evictions_total", "counter", "Cached KV blocks given to another sequence."),
    MetricSpec("trtdecode_steps_total", "counter", "Steps executed."),
    MetricSpec("trtdecode_step_failures_total", "counter", "Steps whose executor or sampler raised."),
    MetricSpec("trtdecode_recoveries_total", "counter", "Faults of the loop itself, after which it started afresh."),
    MetricSpec("trtdecode_watchdog_dumps_total", "counter", "Steps longer than watchdog_ms."),
    MetricSpec("trtdecode_step_tokens", "histogram", "Tokens in one step.", _BATCH_BUCKETS),
    MetricSpec(
        "trtdecode_execute_seconds", "histogram", "Time the executor took for one step.", _TOKEN_LATENCY_BUCKETS
    ),
    MetricSpec("trtdecode_queue_seconds", "histogram", "Arrival to first start.", _LATENCY_BUCKETS),
    MetricSpec("trtdecode_time_to_first_token_seconds", "histogram", "Arrival to first token.", _LATENCY_BUCKETS),
    MetricSpec("trtdecode_inter_token_seconds", "histogram", "Between two tokens.", _TOKEN_LATENCY_BUCKETS),
    MetricSpec("trtdecode_request_seconds", "histogram", "Arrival to final event.", _LATENCY_BUCKETS),
)

_LABELS = {spec.name: spec.label for spec in METRICS}


class MetricSink(Protocol):
    """Where families live: Triton's MetricFamily, a gateway's registry, a test's dictionary."""

    def set(self, name: str, value: float) -> None:
        """Sets a gauge."""
        ...

    def add(self, name: str, labels: Mapping[str, str], amount: float) -> None:
        """Adds to a counter; labels are empty or the one of the spec."""
        ...

    def observe(self, name: str, values: Sequence[float]) -> None:
        """Adds observations to a histogram."""
        ...


class LoopMetrics:
    """Counts of one loop. `counters` only grow; `observations` are drained by `publish`.

    If nobody publishes, the latest `MAX_OBSERVATIONS` of each histogram are kept.
    """

    MAX_OBSERVATIONS = 100_000

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.labelled: Counter[tuple[str, str]] = Counter()  # (name, label value)
        self.gauges: dict[str, float] = {}
        self.observations: dict[str, deque[float]] = {
            spec.name: deque(maxlen=self.MAX_OBSERVATIONS) for spec in METRICS if spec.kind == "histogram"
        }
        self._published: Counter[str] = Counter()
        self._published_labelled: Counter[tuple[str, str]] = Counter()

    def publish(self, sink: MetricSink) -> None:
        """Hands over what is new since the last call. Each value is read once, so the loop may go on meanwhile."""
        for name, value in list(self.gauges.items()):
            sink.set(name, value)
        for name, count in list(self.counters.items()):
            before = self._published[name]
            if count != before:
                sink.add(name, {}, count - before if count > before else count)  # less: the cache started afresh
                self._published[name] = count
        for key, count in list(self.labelled.items()):
            if (delta := count - self._published_labelled[key]) > 0:
                sink.add(key[0], {_LABELS[key[0]]: key[1]}, delta)
                self._published_labelled[key] = count
        for name, kept in self.observations.items():
            if values := [kept.popleft() for _ in range(len(kept))]:
                sink.observe(name, values)

    # -- what the loop reports --------------------------------------------------------------------------------------

    def step_done(self, plan: Schedule, now: float) -> None:
        """A step succeeded; its tokens are not appended yet."""
        counters, observations = self.counters, self.observations
        counters["trtdecode_steps_total"] += 1
        counters["trtdecode_generation_tokens_total"] += len(plan.sampled)
        counters["trtdecode_preemptions_total"] += len(plan.preempted)
        counters["trtdecode_swapped_out_blocks_total"] += len(plan.swap_outs)
        counters["trtdecode_swapped_in_blocks_total"] += len(plan.swap_ins)
        observations["trtdecode_step_tokens"].append(plan.num_tokens)
        times = [request.last_token_time for request in plan.sampled]
        observations["trtdecode_inter_token_seconds"].extend([now - time for time in times if time is not None])
        for request in plan.started:
            if request.num_preemptions == 0:
                counters["trtdecode_prompt_tokens_total"] += request.num_prompt_tokens
                if request.start_time is not None:
                    observations["trtdecode_queue_seconds"].append(request.start_time - request.arrival_time)

    def request_closed(self, request: Request, now: float) -> None:
        """A final event was sent."""
        reason = request.finish_reason
        self.labelled["trtdecode_requests_finished_total", reason.value if reason is not None else "error"] += 1
        self.observations["trtdecode_request_seconds"].append(now - request.arrival_time)
        if request.first_token_time is not None:
            ttft = request.first_token_time - request.arrival_time
            self.observations["trtdecode_time_to_first_token_seconds"].append(ttft)

    def set_gauges(self, scheduler: Scheduler) -> None:
        """Copies the sizes of queues and pool, and the cache's own counts."""
        kv, pool = scheduler.kv, scheduler.kv.pool
        self.gauges["trtdecode_requests_running"] = len(scheduler.running)
        self.gauges["trtdecode_requests_waiting"] = len(scheduler.waiting)
        self.gauges["trtdecode_kv_blocks_total"] = pool.num_usable
        self.gauges["trtdecode_kv_blocks_used"] = pool.num_usable - pool.num_available
        self.gauges["trtdecode_kv_blocks_cached"] = pool.num_cached
        self.gauges["trtdecode_host_blocks"] = kv.host.num_blocks
        self.gauges["trtdecode_host_blocks_used"] = kv.host.num_used
        self.counters["trtdecode_prefix_cache_query_tokens_total"] = kv.stats.num_prefix_queries
        self.counters["trtdecode_prefix_cache_hit_tokens_total"] = kv.stats.num_prefix_hits
        self.counters["trtdecode_kv_evictions_total"] = pool.num_evictions
