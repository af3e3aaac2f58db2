"""What the engine is doing, as one JSON object twice a second: the page's view, and anyone's.

    {"replicas": [{"index": 0, "ready": true, "models": {"smollm2": {
        "requests_running": 3, "requests_waiting": 0, "kv_blocks_total": 1024, "kv_blocks_used": 40,
        "kv_blocks_cached": 12, "preemptions_total": 0, "generation_tokens_total": 9120,
        "tokens_per_s": 211.5, "prefix_hit_rate": 0.62,
        "num_sequences": 2, "blocks_per_cell": 1, "blocks": [[7, 12], [-1, 12], [9, 28], [0, 972]]}}}]}

`tokens_per_s` is since the object before; `prefix_hit_rate` is of all prompt tokens looked up since the load.
`blocks` are runs of [owner, count] over the pool: 0 free, -1 cached, otherwise the number of a sequence that has the
block. In large pools a cell of the map stands for `blocks_per_cell` blocks. These three are absent where the server
does not tell: on another machine, or in the middle of a long step.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from trtdecode.loadtest.server_metrics import Sample, parse

INTERVAL = 0.5
_GAUGES = ("requests_running", "requests_waiting", "kv_blocks_total", "kv_blocks_used", "kv_blocks_cached")
_COUNTERS = ("preemptions_total", "generation_tokens_total", "prompt_tokens_total")
_PREFIX = "trtdecode_"

Inspect = Callable[[int, str], Awaitable[dict[str, Any] | None]]  # (replica, model) -> the map's three fields


class EngineRoom:
    """Reads the servers' `/metrics`; shared by all viewers, so that many pages cost one scrape."""

    def __init__(self, metrics_urls: tuple[str, ...], inspect: Inspect | None = None) -> None:
        self._urls = metrics_urls
        self._inspect = inspect
        self._latest: tuple[float, dict[str, Any]] | None = None
        self._lock = asyncio.Lock()
        self._closed = asyncio.Event()

    async def metrics_text(self) -> str:
        """The servers' Prometheus text, one after another. Servers that are away are left out."""
        texts = await asyncio.gather(*(asyncio.to_thread(_read, url) for url in self._urls))
        return "".join(text for text in texts if text)

    async def view(self) -> dict[str, Any]:
        """The current object; at most one scrape an interval."""
        async with self._lock:
            now = time.monotonic()
            if self._latest is None or now - self._latest[0] >= INTERVAL * 0.9:
                before = self._latest
                self._latest = (now, await self._scrape(before, now))
            return self._latest[1]

    async def events(self) -> AsyncGenerator[dict[str, Any]]:
        """The object, again and again, until `close`."""
        while not self._closed.is_set():
            yield await self.view()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), INTERVAL)

    def close(self) -> None:
        """Ends every stream of events."""
        self._closed.set()

    async def _scrape(self, before: tuple[float, dict[str, Any]] | None, now: float) -> dict[str, Any]:
        texts = await asyncio.gather(*(asyncio.to_thread(_read, url) for url in self._urls))
        replicas = []
        for index, text in enumerate(texts):
            models = _models(parse(text)) if text else {}
            for name, figures in models.items():
                earlier = _earlier(before, index, name)
                produced = figures["generation_tokens_total"] - earlier.get("generation_tokens_total", 0.0)
                seconds = now - before[0] if before and earlier else 0.0
                figures["tokens_per_s"] = round(max(0.0, produced) / seconds, 1) if seconds else 0.0
                blocks = await self._inspect(index, name) if self._inspect else None
                figures |= blocks or {}
            replicas.append({"index": index, "ready": text is not None, "models": models})
        return {"replicas": replicas}


def _read(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            text: str = response.read().decode()
            return text
    except (OSError, ValueError):
        return None


def _models(samples: list[Sample]) -> dict[str, dict[str, Any]]:
    """Figures by model, summed over versions and instances."""
    models: dict[str, dict[str, Any]] = {}
    for sample in samples:
        model = sample.labels.get("model")
        if model and sample.name.startswith(_PREFIX):
            name = sample.name.removeprefix(_PREFIX)
            found = models.setdefault(model, {})
            found[name] = found.get(name, 0.0) + sample.value
    return {model: _figures(values) for model, values in models.items() if "kv_blocks_total" in values}


def _figures(values: dict[str, float]) -> dict[str, Any]:
    figures: dict[str, Any] = {name: int(values.get(name, 0)) for name in (*_GAUGES, *_COUNTERS)}
    queries = values.get("prefix_cache_query_tokens_total", 0.0)
    figures["prefix_hit_rate"] = (
        round(values.get("prefix_cache_hit_tokens_total", 0.0) / queries, 4) if queries else 0.0
    )
    return figures


def _earlier(before: tuple[float, dict[str, Any]] | None, index: int, name: str) -> dict[str, Any]:
    if before is None:
        return {}
    found: dict[str, Any] = before[1]["replicas"][index]["models"].get(name, {})
    return found
