"""Reads `/metrics` while a level runs: the engine room over time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from trtdecode.loadtest.server_metrics import scrape, total

#: Gauges drawn over time, where the server has them.
WATCHED = (
    "trtdecode_requests_running",
    "trtdecode_requests_waiting",
    "trtdecode_kv_blocks_used",
    "trtdecode_kv_blocks_total",
    "nv_inference_pending_request_count",
)


@dataclass(slots=True)
class Series:
    """Samples of the watched gauges: seconds since the start, and one value each (None where absent)."""

    times: list[float] = field(default_factory=list)
    values: dict[str, list[float | None]] = field(default_factory=lambda: {name: [] for name in WATCHED})


class Watch:
    """Samples a `/metrics` address in the background; use as an async context manager around a level."""

    def __init__(self, url: str | None, model: str, interval: float = 0.5) -> None:
        self._url = url
        self._model = model
        self._interval = interval
        self.series = Series()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Watch:
        if self._url:
            self._task = asyncio.create_task(self._sample(self._url))
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _sample(self, url: str) -> None:
        start = time.monotonic()
        while True:
            try:
                samples = await asyncio.to_thread(scrape, url)
            except OSError:
                samples = []  # a gap in the plot says it
            self.series.times.append(time.monotonic() - start)
            for name, values in self.series.values.items():
                values.append(total(samples, name, self._model))
            await asyncio.sleep(self._interval)
