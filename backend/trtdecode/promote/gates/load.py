"""Is the candidate as fast as the version in service, measured in turns on one server?"""

from __future__ import annotations

import asyncio
from typing import Any

from trtdecode.loadtest.client import LoadClient
from trtdecode.loadtest.records import Record, Slo, summarise
from trtdecode.loadtest.run import run_shots
from trtdecode.loadtest.traffic import Traffic, generate
from trtdecode.promote.gate import CANDIDATE, CURRENT, Context, Gate

ROUNDS = 3  # in turns, so that both see the same minutes of the machine


def ask(context: Context) -> tuple[bool, str, dict[str, Any]]:
    """Closed loop over gRPC streaming; ratios to the version in service, and an absolute SLO if one is given."""
    limits = context.limits.load
    slo = Slo.parse(limits.slo)
    address = context.server().grpc_address
    names = [CANDIDATE] + ([CURRENT] if context.current_dir is not None else [])
    for name in names:  # the first requests compile and fill caches
        _measure(address, name, context, seed=-1)
    records: dict[str, list[Record]] = {name: [] for name in names}
    seconds = dict.fromkeys(names, 0.0)
    for seed in range(ROUNDS):
        for name in names:
            found, duration = _measure(address, name, context, seed)
            records[name] += found
            seconds[name] += duration
    figures = {name: summarise(records[name], seconds[name], slo) for name in names}
    problems = slo.misses(figures[CANDIDATE])
    if figures[CANDIDATE]["error_rate"] > limits.max_error_rate:
        problems.append(f"errors: {figures[CANDIDATE]['errors']}")
    if CURRENT in figures and not problems:
        problems += _slower(figures[CANDIDATE], figures[CURRENT], context)
    mine = figures[CANDIDATE]
    evidence = f"{mine['tokens_per_s']:.0f} tokens/s, TTFT p95 {1000 * (mine['ttft_p95'] or 0):.0f} ms"
    if CURRENT in figures:
        old = figures[CURRENT]
        evidence += f" (in service: {old['tokens_per_s']:.0f}, {1000 * (old['ttft_p95'] or 0):.0f} ms)"
    return not problems, "; ".join([*problems, evidence]), figures


def _slower(mine: dict[str, Any], old: dict[str, Any], context: Context) -> list[str]:
    limits = context.limits.load
    ttft = mine["ttft_p95"] / old["ttft_p95"]
    rate = mine["tokens_per_s"] / old["tokens_per_s"]
    problems = []
    if ttft > limits.max_ttft_p95_ratio:
        problems.append(f"TTFT p95 is {ttft:.2f} times that in service, limit {limits.max_ttft_p95_ratio}")
    if rate < limits.min_tokens_per_s_ratio:
        problems.append(f"tokens/s are {rate:.2f} of those in service, limit {limits.min_tokens_per_s_ratio}")
    return problems


def _measure(address: str, model: str, context: Context, seed: int) -> tuple[list[Record], float]:
    limits = context.limits.load
    count = max(1, limits.requests // ROUNDS)
    traffic = Traffic(num_requests=count, prompt_words=32, output_tokens=limits.output_tokens, seed=seed + 1)

    async def run() -> tuple[list[Record], float]:
        async with LoadClient(address, model, timeout=context.limits.contract.timeout_s) as client:
            return await run_shots(client, generate(traffic), limits.concurrency)

    return asyncio.run(run())


GATE = Gate("load", ask)
