"""The soak in process: one replica, its loop's thread, and as many requests at once as a busy server has."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from levels import Levels, own_rss
from traffic_mix import Job
from trtdecode.config import ServingConfig
from trtdecode.errors import RequestError
from trtdecode.replica import Replica
from trtdecode.request import TokenEvent
from trtdecode.sampling.params import SamplingParams
from watched_server import wait_until

_AT_ONCE = 64


class _NullSink:
    """Reads the metrics as Triton's publisher does, so that histograms do not pile up."""

    def set(self, name: str, value: float) -> None:
        pass

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        pass

    def observe(self, name: str, values: Sequence[float]) -> None:
        pass


class _Client:
    """Receives one job's events and leaves when it is time."""

    def __init__(self, job: Job, places: threading.Semaphore, ends: Counter[str]) -> None:
        self._job = job
        self._places = places
        self._ends = ends
        self._num_events = 0
        self._num_open = job.sampling.get("n", 1)

    def is_gone(self) -> bool:
        return self._job.leaves_after is not None and self._num_events >= self._job.leaves_after

    def on_event(self, event: TokenEvent) -> None:
        self._num_events += 1
        if event.finish_reason is not None:
            self._ends[event.finish_reason.value] += 1
            self._num_open -= 1
            if not self._num_open:
                self._places.release()


class ReplicaSoak:
    """Use as a context manager."""

    def __init__(self, version_dir: Path, config: ServingConfig) -> None:
        self._replica = Replica.load(version_dir, config)
        self.ends: Counter[str] = Counter()
        self._num_sent = 0

    def __enter__(self) -> ReplicaSoak:
        return self

    def __exit__(self, *_: object) -> None:
        self._replica.close()

    def run(self, jobs: Iterable[Job]) -> None:
        """Sends all and waits for every end."""
        places = threading.Semaphore(_AT_ONCE)
        for job in jobs:
            places.acquire()
            self._num_sent += 1
            if not self._send(job, places):
                places.release()
        for _ in range(_AT_ONCE):
            if not places.acquire(timeout=120):
                raise RuntimeError("a request has had no end for 120 s")

    def _send(self, job: Job, places: threading.Semaphore) -> bool:
        replica, client = self._replica, _Client(job, places, self.ends)
        try:
            params = SamplingParams.from_mapping(
                job.sampling, spec_vocab_size=replica.spec.vocab_size, defaults=replica.default_params
            )
            samples = replica.samples(
                replica.encode(job.prompt), params, on_event=client.on_event, is_cancelled=client.is_gone
            )
            replica.submit(samples)
        except RequestError:
            self.ends["refused" if job.is_bad else "REFUSED"] += 1
            return False
        if job.is_bad:
            self.ends["ACCEPTED"] += 1
        return True

    def levels(self) -> Levels:
        """Sizes once the loop is idle."""
        metrics = self._replica.metrics
        wait_until(lambda: not metrics.gauges.get("trtdecode_kv_blocks_used"), 3)
        metrics.publish(_NullSink())
        live = metrics.gauges["trtdecode_requests_running"] + metrics.gauges["trtdecode_requests_waiting"]
        used = int(metrics.gauges["trtdecode_kv_blocks_used"] + metrics.gauges["trtdecode_host_blocks_used"])
        return Levels(self._num_sent, {"process": own_rss()}, 0, 0, used, int(live))

    def counter(self, name: str) -> int:
        return self._replica.metrics.counters[name]

    def faults(self) -> list[str]:
        """What must never have happened."""
        names = ("trtdecode_step_failures_total", "trtdecode_recoveries_total")
        found = [
            f"{name} is {self._replica.metrics.counters[name]}"
            for name in names
            if self._replica.metrics.counters[name]
        ]
        return found + [f"{count} requests were {end}" for end, count in self.ends.items() if end.isupper()]
