"""What reaches a sink: names, deltas, observations, after a run whose numbers are known."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest
import trtdecode.loop
import trtdecode.metrics
from simulation.builders import make_loop, make_request
from trtdecode.metrics import METRICS, LoopMetrics, MetricSpec


class Sink:
    """Implements `MetricSink` with dictionaries."""

    def __init__(self) -> None:
        self.gauges: dict[str, float] = {}
        self.counters: dict[tuple[str, ...], float] = defaultdict(float)
        self.observed: dict[str, list[float]] = defaultdict(list)

    def set(self, name: str, value: float) -> None:
        self.gauges[name] = value

    def add(self, name: str, labels: Mapping[str, str], amount: float) -> None:
        assert amount > 0
        self.counters[(name, *labels.values())] += amount

    def observe(self, name: str, values: Sequence[float]) -> None:
        self.observed[name].extend(values)


@pytest.mark.parametrize("spec", METRICS, ids=lambda spec: spec.name)
def test_names_follow_prometheus(spec: MetricSpec) -> None:
    assert re.fullmatch(r"trtdecode_[a-z_]+", spec.name)
    assert spec.name.endswith("_total") == (spec.kind == "counter") or spec.name == "trtdecode_kv_blocks_total"
    assert bool(spec.buckets) == (spec.kind == "histogram")
    assert spec.buckets == tuple(sorted(set(spec.buckets)))
    assert spec.help.endswith(".")


def test_names_are_unique() -> None:
    assert len({spec.name for spec in METRICS}) == len(METRICS)


def test_a_run_in_numbers() -> None:
    now = [0.0]
    loop, sink = make_loop(clock=lambda: now[0], max_num_batched_tokens=64), Sink()
    loop.submit(make_request(14, 3, arrival_time=-1.0))
    while loop.step():
        now[0] += 0.5
    loop.submit(make_request(14, 2, arrival_time=now[0]))
    while loop.step():
        now[0] += 0.5
    loop.metrics.set_gauges(loop.scheduler)
    loop.metrics.publish(sink)
    assert sink.gauges == {
        "trtdecode_requests_running": 0,
        "trtdecode_requests_waiting": 0,
        "trtdecode_kv_blocks_total": 64,
        "trtdecode_kv_blocks_used": 0,
        "trtdecode_host_blocks": 0,
        "trtdecode_host_blocks_used": 0,
        "trtdecode_kv_blocks_cached": 4,  # three of the prompt, and the one that two outputs have filled
    }
    assert sink.counters == {
        ("trtdecode_requests_total",): 2,
        ("trtdecode_requests_finished_total", "length"): 2,
        ("trtdecode_prompt_tokens_total",): 28,
        ("trtdecode_generation_tokens_total",): 5,
        ("trtdecode_prefix_cache_query_tokens_total",): 28,
        ("trtdecode_prefix_cache_hit_tokens_total",): 12,
        ("trtdecode_steps_total",): 5,
    }
    assert len(sink.observed.pop("trtdecode_execute_seconds")) == 5
    assert sink.observed == {
        "trtdecode_step_tokens": [14, 1, 1, 2, 1],
        "trtdecode_queue_seconds": [1.0, 0.0],
        "trtdecode_time_to_first_token_seconds": [1.0, 0.0],
        "trtdecode_inter_token_seconds": [0.5, 0.5, 0.5],
        "trtdecode_request_seconds": [2.0, 0.5],
    }


def test_only_what_is_new_is_published() -> None:
    metrics, sink = LoopMetrics(), Sink()
    metrics.counters["trtdecode_steps_total"] += 2
    metrics.labelled["trtdecode_requests_finished_total", "stop"] += 1
    metrics.observations["trtdecode_step_tokens"].append(7.0)
    metrics.publish(sink)
    metrics.publish(sink)
    metrics.counters["trtdecode_steps_total"] += 3
    metrics.publish(sink)
    assert sink.counters == {("trtdecode_steps_total",): 5, ("trtdecode_requests_finished_total", "stop"): 1}
    assert sink.observed == {"trtdecode_step_tokens": [7.0]}


def test_observations_are_bounded_when_nobody_publishes() -> None:
    metrics = LoopMetrics()
    metrics.observations["trtdecode_step_tokens"].extend(float(i) for i in range(metrics.MAX_OBSERVATIONS + 5))
    assert len(metrics.observations["trtdecode_step_tokens"]) == metrics.MAX_OBSERVATIONS


def test_every_name_the_loop_uses_is_in_the_table() -> None:
    """A name that is missing there would never reach Prometheus."""
    used = set(re.findall(r"\"(trtdecode_[a-z_]+)\"", inspect.getsource(trtdecode.loop)))
    used |= set(re.findall(r"\[\"(trtdecode_[a-z_]+)\"", inspect.getsource(trtdecode.metrics)))
    assert used <= {spec.name for spec in METRICS}
    assert {spec.name for spec in METRICS} - used == set()
