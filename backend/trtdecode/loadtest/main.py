"""`scripts/loadtest`: levels of load against a running (or self-started) server, and a report with a verdict."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtdecode.loadtest import agreement, perf_analyzer, server_metrics
from trtdecode.loadtest.client import LoadClient
from trtdecode.loadtest.records import Record, Slo, summarise
from trtdecode.loadtest.run import run_shots
from trtdecode.loadtest.traffic import Shot
from trtdecode.loadtest.watch import Watch


@dataclass(frozen=True, slots=True)
class Plan:
    """One load test."""

    url: str  # gRPC host:port
    metrics_url: str | None
    model: str
    levels: tuple[float, ...]  # concurrencies, or requests a second in the open loop
    open_loop: bool
    slo: Slo
    timeout: float = 300.0
    ignore_eos: bool = True
    tool_folder: Path | None = None  # where perf_analyzer is kept; None: our own client only
    perf_requests: int = 40


@dataclass(slots=True)
class Outcome:
    """What came of it; `result` is the JSON."""

    result: dict[str, Any]
    records: list[list[Record]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.result["slo_misses"] and not self.result["disagreements"]


def run_plan(
    plan: Plan,
    shots_at: Callable[[float], Sequence[Shot]],
    on_level: Callable[[list[dict[str, Any]]], None] = lambda levels: None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Runs every level with our client, then with perf_analyzer where it is wanted.

    Args:
        shots_at: the requests of a level.
        on_level: called with all levels so far after each.

    Raises:
        ConfigError, LoadError: no such model, or perf_analyzer cannot run.
    """
    levels: list[dict[str, Any]] = []
    outcome = Outcome({}, [])
    disagreements: list[str] = []
    misses: list[str] = []
    tool = perf_analyzer.find_perf_analyzer(plan.tool_folder) if plan.tool_folder else None
    for level in plan.levels:
        shots = shots_at(level)
        figures, records, found = asyncio.run(_own_level(plan, level, shots, on_progress))
        disagreements += [f"load {level:g}: {text}" for text in found]
        misses += [f"load {level:g}: {text}" for text in plan.slo.misses(figures)]
        levels.append(figures)
        outcome.records.append(records)
        on_level(levels)
        if tool:
            figures, found = _perf_level(plan, tool, level, shots)
            disagreements += [f"load {level:g}, perf_analyzer: {text}" for text in found]
            levels.append(figures)
            on_level(levels)
    outcome.result = {
        "model": plan.model,
        "machine": _machine(),
        "perf_analyzer": tool.version if tool else None,
        "slo": plan.slo.limits,
        "slo_misses": misses,
        "disagreements": disagreements,
        "counts_compared": plan.metrics_url is not None,
        "tokens_counted": all(level.get("tokens_counted", True) for level in levels),
        "levels": levels,
    }
    return outcome


async def _own_level(
    plan: Plan, level: float, shots: Sequence[Shot], on_progress: Callable[[int, int], None]
) -> tuple[dict[str, Any], list[Record], list[str]]:
    before = _scrape(plan)
    async with (
        LoadClient(plan.url, plan.model, timeout=plan.timeout, ignore_eos=plan.ignore_eos) as client,
        Watch(plan.metrics_url, plan.model) as watch,
    ):
        concurrency = 0 if plan.open_loop else int(level)
        records, duration = await run_shots(client, shots, concurrency, on_progress)
    figures = summarise(records, duration, plan.slo)
    figures |= {"level": f"{level:g}", "tool": "tokens", "series": dataclasses.asdict(watch.series)}
    found = await _settled(plan, before, lambda growth: agreement.own_disagreements(figures, growth))
    return figures, records, found


def _perf_level(
    plan: Plan, tool: perf_analyzer.PerfAnalyzer, level: float, shots: Sequence[Shot]
) -> tuple[dict[str, Any], list[str]]:
    before = _scrape(plan)
    with tempfile.TemporaryDirectory(prefix="trtdecode-loadtest-") as work:
        inputs = Path(work) / "inputs.json"
        perf_analyzer.write_inputs(inputs, shots, ignore_eos=plan.ignore_eos)
        figures = perf_analyzer.measure(
            tool,
            url=plan.url,
            model=plan.model,
            inputs=inputs,
            num_requests=plan.perf_requests,
            concurrency=0 if plan.open_loop else int(level),
            rate=level if plan.open_loop else 0.0,
            work_dir=Path(work),
            timeout=plan.timeout,
        )
    figures |= {"level": f"{level:g}", "tool": "perf_analyzer"}
    lengths = {shot.max_tokens for shot in shots} if plan.ignore_eos else set()
    limits = agreement.PerfLimits(
        concurrency=None if plan.open_loop else int(level), tokens_each=lengths.pop() if len(lengths) == 1 else None
    )
    found = asyncio.run(_settled(plan, before, lambda growth: agreement.perf_disagreements(figures, growth, limits)))
    return figures, found


def _scrape(plan: Plan) -> list[server_metrics.Sample]:
    return server_metrics.scrape(plan.metrics_url) if plan.metrics_url else []


async def _settled(
    plan: Plan, before: list[server_metrics.Sample], compare: Callable[[server_metrics.Growth], list[str]]
) -> list[str]:
    """What `compare` finds in the server's counters, which may be published a little later than the last response."""
    found: list[str] = []
    for delay in (0.3, 0.7, 1.0) if plan.metrics_url else ():
        await asyncio.sleep(delay)
        found = compare(server_metrics.Growth(before, await asyncio.to_thread(_scrape, plan), plan.model))
        if not found:
            break
    return found


def _machine() -> str:
    """The client's machine, which is the server's too when it runs here."""
    lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} CPUs"


def write_json(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
