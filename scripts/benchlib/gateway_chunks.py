"""What streaming through the gateway costs: CPU a chunk, time added to the first token, what is left of the throughput.

The same requests go to Triton over gRPC and through a gateway in a process of its own, in turns, so that both see the
same minutes of the machine. Client, gateway and server share the machine's cores, as in a small deployment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

from gateway_process import MEASURED, GatewayProcess
from trtdecode.loadtest.client import LoadClient
from trtdecode.loadtest.records import Record, Slo, summarise
from trtdecode.loadtest.run import run_shots
from trtdecode.loadtest.traffic import Shot, Traffic, generate


class GatewayClient:
    """Sends shots to /v1/completions as `LoadClient` sends them to Triton; counts chunks."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def send(self, shot: Shot, prompt: str) -> Record:
        """One streamed request. Raises RuntimeError for an answer that is not a stream."""
        fields = {
            "model": MEASURED,
            "prompt": prompt,
            "max_tokens": shot.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        body = json.dumps({**fields, "stream": True, "stream_options": {"include_usage": True}}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close"
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        record = Record(sent_at=time.monotonic())
        writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"the gateway answered {status.decode().strip()}")
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if event["choices"]:
                    record.chunk_times.append(time.monotonic())
                elif event["usage"]:
                    record.num_tokens = event["usage"]["completion_tokens"]
        record.ended_at = time.monotonic()
        writer.close()
        return record


async def measure_chunks(grpc: str, gateway: GatewayProcess, asked: argparse.Namespace) -> dict[str, Any]:
    """Figures by name. `asked` has concurrency, tokens, singles and repeats."""
    through = GatewayClient(gateway.port)
    ttft: dict[str, list[float]] = {"direct": [], "gateway": []}
    rates: dict[str, list[float]] = {"direct": [], "gateway": []}
    cpu = chunks = 0.0
    async with LoadClient(grpc, MEASURED, timeout=120) as direct:
        clients: dict[str, Any] = {"direct": direct, "gateway": through}
        for repeat in range(asked.repeats + 1):  # the first is a warm-up
            for name, client in clients.items():
                single = generate(Traffic(num_requests=asked.singles, prompt_words=16, output_tokens=2, seed=repeat))
                count = 3 * asked.concurrency
                load = generate(Traffic(num_requests=count, prompt_words=16, output_tokens=asked.tokens, seed=repeat))
                records, _ = await run_shots(client, single, 1)
                first = [record.ttft for record in records]
                before = gateway.cpu_seconds()
                records, duration = await run_shots(client, load, asked.concurrency)
                figures = summarise(records, duration, Slo({}))
                assert figures["output_tokens"] == count * asked.tokens, figures
                if repeat:
                    ttft[name] += first
                    rates[name].append(figures["tokens_per_s"])
                    if name == "gateway":
                        cpu += gateway.cpu_seconds() - before
                        chunks += figures["chunks"]
    medians = {name: statistics.median(values) for name, values in ttft.items()}
    return {
        "cpu_us_per_chunk": 1e6 * cpu / chunks,
        "chunks": int(chunks),
        "ttft_direct_ms": 1000 * medians["direct"],
        "ttft_gateway_ms": 1000 * medians["gateway"],
        "added_ttft_ms": 1000 * (medians["gateway"] - medians["direct"]),
        "tokens_per_s_direct": statistics.median(rates["direct"]),
        "tokens_per_s_gateway": statistics.median(rates["gateway"]),
        "throughput_ratio": statistics.median(rates["gateway"]) / statistics.median(rates["direct"]),
        "concurrency": asked.concurrency,
    }
