"""After a soak with cancels: are blocks, memory and shared memory back where they were?"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from trtdecode.loadtest.client import LoadClient
from trtdecode.loadtest.run import run_shots
from trtdecode.loadtest.server_metrics import parse, total
from trtdecode.loadtest.traffic import Traffic, generate
from trtdecode.promote.gate import CANDIDATE, Context, Gate
from trtdecode.server.launch import TritonServer

SETTLE_S = 10.0


def ask(context: Context) -> tuple[bool, str, dict[str, Any]]:
    """Two equal soaks: the first warms up, the second must leave nothing behind."""
    limits = context.limits.leak
    server = context.server()
    _soak(server, context, seed=1)
    before = _usage(server)
    _soak(server, context, seed=2)
    deadline = time.monotonic() + SETTLE_S
    after = _usage(server)
    while after["blocks"] > limits.max_blocks_left and time.monotonic() < deadline:
        time.sleep(0.3)  # cancels arrive, and metrics are published, a moment later
        after = _usage(server)
    problems = []
    if after["blocks"] > limits.max_blocks_left:
        problems.append(f"{after['blocks']:.0f} KV blocks are still in use, limit {limits.max_blocks_left}")
    for name, limit in (("rss", limits.max_rss_growth_bytes), ("shm", limits.max_shm_growth_bytes)):
        growth = after[name] - before[name]
        if growth > limit:
            problems.append(f"{name} grew by {growth} bytes, limit {limit}")
    figures = {"before": before, "after": after}
    grown = f"RSS {after['rss'] - before['rss']:+} bytes, /dev/shm {after['shm'] - before['shm']:+} bytes"
    return not problems, "; ".join(problems) or f"{limits.requests} requests leave no block; {grown}", figures


def _soak(server: TritonServer, context: Context, seed: int) -> None:
    limits = context.limits.leak
    traffic = Traffic(
        num_requests=limits.requests,
        prompt_words=16,
        output_tokens=8,
        poisson_lengths=True,
        cancel_fraction=limits.cancel_fraction,
        cancel_after=0.2,
        seed=seed,
    )

    async def run() -> None:
        async with LoadClient(server.grpc_address, CANDIDATE, timeout=context.limits.contract.timeout_s) as client:
            await run_shots(client, generate(traffic), concurrency=8)

    asyncio.run(run())


def _usage(server: TritonServer) -> dict[str, int]:
    """KV blocks of the candidate, resident bytes of the server's stubs, and bytes of its shared memory."""
    blocks = total(parse(server.client.metrics()), "trtdecode_kv_blocks_used", CANDIDATE) or 0.0
    rss = sum(_rss(stub.pid) for stub in server.stubs())
    shm = sum(path.stat().st_size for path in Path("/dev/shm").glob(f"{server.shm_prefix}*"))
    return {"blocks": int(blocks), "rss": rss, "shm": shm}


def _rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


GATE = Gate("leak", ask)
