"""`scripts/loadtest`: levels of load against a running (or self-started) server, and a report with a verdict."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtdecode.loadtest import perf_analyzer, server_metrics
from trtdecode.loadtest.client import LoadClient
from trtdecode.loadtest.records import Record, Slo, summarise
from trtdecode.loadtest.run import run_shots
from trtdecode.loadtest.traffic import Shot
from trtdecode.loadtest.watch import Watch

GENERATED = "trtdecode_generation_tokens_total"
SUCCEEDED = "nv_inference_request_success"


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
        "machine": f"{platform.processor() or platform.machine()}, {platform.system()} {platform.release()}",
        "perf_analyzer": tool.version if tool else None,
        "slo": plan.slo.limits,
        "slo_misses": misses,
        "disagreements": disagreements,
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
    counts: dict[str, float] = {}
    if not figures["cancelled"] and not figures["errors"]:
        # A cancelled request may have produced tokens that nobody read: only clean levels can be compared exactly.
        counts = {SUCCEEDED: figures["ok"]}
        if figures["tokens_counted"]:
            counts[GENERATED] = figures["output_tokens"]
    return figures, records, await _disagreements(plan, before, counts)


def _perf_level(
    plan: Plan, tool: perf_analyzer.PerfAnalyzer, level: float, shots: Sequence[Shot]
) -> tuple[dict[str, Any], list[str]]:
    before = _scrape(plan)
    with tempfile.TemporaryDirectory(prefix="trtdecode-loadtest-") as work:
        inputs = Path(work) / "inputs.json"
        prompts = [shot.prompt for shot in shots]
        perf_analyzer.write_inputs(inputs, prompts, shots[0].max_tokens, ignore_eos=plan.ignore_eos)
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
    # It also sends requests outside its measurement window, so the server must have seen at least as many.
    agreement = server_metrics.compare(before, _scrape(plan), plan.model, {SUCCEEDED: figures["requests"]})[0]
    if agreement.server is not None and agreement.server < agreement.client:
        return figures, [f"{SUCCEEDED}: profile holds {agreement.client:g}, server counted {agreement.server:g}"]
    return figures, []


def _scrape(plan: Plan) -> list[server_metrics.Sample]:
    return server_metrics.scrape(plan.metrics_url) if plan.metrics_url else []


async def _disagreements(plan: Plan, before: list[server_metrics.Sample], counts: dict[str, float]) -> list[str]:
    """Compares with the server's counters, which may be published a little later than the last response."""
    if not plan.metrics_url or not counts:
        return []
    for delay in (0.3, 0.7, 2.0):
        await asyncio.sleep(delay)
        found = server_metrics.compare(before, await asyncio.to_thread(_scrape, plan), plan.model, counts)
        wrong = [f"{one.what}: client counted {one.client:g}, server {one.server:g}" for one in found if not one.holds]
        if not wrong:
            break
    return wrong


def write_json(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
