"""`LoopMetrics` -> Triton's /metrics, through MetricFamily. Knows no server: the family type is handed in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trtdecode.metrics import METRICS, LoopMetrics, MetricSpec

PUBLISH_INTERVAL_S = 0.2
RESTARTS = MetricSpec("trtdecode_server_restarts_total", "counter", "Restarts of tritonserver by `trtdecode serve`.")

_ENCODER_NAMES = {"requests_total", "prompt_tokens_total", "steps_total", "step_failures_total"} | {
    "step_tokens",
    "execute_seconds",
}
#: What an encoder counts; queues and batches are Triton's own there, and so are their metrics.
ENCODER_METRICS = tuple(spec for spec in METRICS if spec.name.removeprefix("trtdecode_") in _ENCODER_NAMES)


class TritonMetricSink:
    """A `MetricSink` over Triton's metric families, with the model's name and version as labels.

    The families are kept for as long as their metrics: a collected family makes the next update raise.

    Args:
        family_type: pb_utils.MetricFamily.
        labels: of every metric of this replica.
        specs: what there is to count; encoders count less.
    """

    def __init__(
        self, family_type: Any, labels: Mapping[str, str], specs: Sequence[MetricSpec] = (*METRICS, RESTARTS)
    ) -> None:
        self._labels = dict(labels)
        self._specs = {spec.name: spec for spec in specs}
        kinds = {"counter": family_type.COUNTER, "gauge": family_type.GAUGE, "histogram": family_type.HISTOGRAM}
        self._families = {
            spec.name: family_type(name=spec.name, description=spec.help, kind=kinds[spec.kind])
            for spec in self._specs.values()
        }
        self._metrics: dict[tuple[str, tuple[str, ...]], Any] = {}
        for spec in self._specs.values():
            if not spec.label:  # from the first scrape on, also while it is 0
                self._metric(spec.name, {})

    def set(self, name: str, value: float) -> None:
        """See MetricSink."""
        self._metric(name, {}).set(value)

    def add(self, name: str, labels: Mapping[str, str], amount: float) -> None:
        """See MetricSink."""
        self._metric(name, labels).increment(amount)

    def observe(self, name: str, values: Sequence[float]) -> None:
        """See MetricSink."""
        metric = self._metric(name, {})
        for value in values:
            metric.observe(value)

    def _metric(self, name: str, labels: Mapping[str, str]) -> Any:
        key = (name, tuple(labels.values()))
        if key not in self._metrics:
            options = {"buckets": list(self._specs[name].buckets)} if self._specs[name].kind == "histogram" else {}
            self._metrics[key] = self._families[name].Metric(labels={**self._labels, **labels}, **options)
        return self._metrics[key]


class MetricsPublisher:
    """Publishes a few times a second, on a thread of its own; an update is a round trip to the server."""

    def __init__(self, metrics: LoopMetrics, sink: TritonMetricSink, on_error: Callable[[str], None]) -> None:
        self._metrics = metrics
        self._sink = sink
        self._on_error = on_error
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trtdecode-metrics", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Publishes once more and stops."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        stopped = False
        while not stopped:
            stopped = self._stop.wait(PUBLISH_INTERVAL_S)
            try:
                self._metrics.publish(self._sink)
            except Exception as error:  # metrics must never take the model down
                self._on_error(f"metrics could not be published, and are given up: {error}")
                return
