"""What the gateway costs: its CPU time a chunk, the time it adds to the first token, what is left of the throughput.

The same requests go to Triton over gRPC and through a gateway in a process of its own, in turns, so that both see the
same minutes of the machine. Client, gateway and server share the machine's cores, as in a small deployment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtdecode.loadtest.client import LoadClient
from trtdecode.loadtest.records import Record, Slo, summarise
from trtdecode.loadtest.run import run_shots
from trtdecode.loadtest.traffic import Shot, Traffic, generate
from trtdecode.server.launch import TritonServer
from trtdecode.server.ports import free_ports

MODEL = "measured"


class GatewayClient:
    """Sends shots to /v1/completions as `LoadClient` sends them to Triton; counts chunks."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def send(self, shot: Shot, prompt: str) -> Record:
        """One streamed request. Raises RuntimeError for an answer that is not a stream."""
        fields = {"model": MODEL, "prompt": prompt, "max_tokens": shot.max_tokens, "temperature": 0, "ignore_eos": True}
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


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _measure(grpc: str, gateway: subprocess.Popen[bytes], port: int, asked: argparse.Namespace) -> dict[str, Any]:
    through = GatewayClient(port)
    ttft: dict[str, list[float]] = {"direct": [], "gateway": []}
    rates: dict[str, list[float]] = {"direct": [], "gateway": []}
    cpu = chunks = 0.0
    async with LoadClient(grpc, MODEL, timeout=120) as direct:
        clients: dict[str, Any] = {"direct": direct, "gateway": through}
        for repeat in range(asked.repeats + 1):  # the first is a warm-up
            for name, client in clients.items():
                single = generate(Traffic(num_requests=asked.singles, prompt_words=16, output_tokens=2, seed=repeat))
                count = 3 * asked.concurrency
                load = generate(Traffic(num_requests=count, prompt_words=16, output_tokens=asked.tokens, seed=repeat))
                records, _ = await run_shots(client, single, 1)
                first = [record.ttft for record in records]
                before = cpu_seconds(gateway.pid)
                records, duration = await run_shots(client, load, asked.concurrency)
                figures = summarise(records, duration, Slo({}))
                assert figures["output_tokens"] == count * asked.tokens, figures
                if repeat:
                    ttft[name] += first
                    rates[name].append(figures["tokens_per_s"])
                    if name == "gateway":
                        cpu += cpu_seconds(gateway.pid) - before
                        chunks += figures["chunks"]
    misses, hits = [], []
    for number in range(asked.singles):
        for times in (misses, hits):  # the same greedy request twice
            start = time.monotonic()
            _whole(port, f"{number} once upon a time")
            times.append(time.monotonic() - start)
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
        "response_cache_miss_ms": 1000 * statistics.median(misses),
        "response_cache_hit_ms": 1000 * statistics.median(hits),
    }


def _whole(port: int, prompt: str) -> None:
    """One answer that is not streamed: those are cached."""
    fields = {"model": MODEL, "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(fields).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        response.read()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench gateway", description=__doc__)
    parser.add_argument("version_dir", type=Path, help="a model version")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--singles", type=int, default=20, help="requests one after another, for the first token")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="trtdecode-bench-") as folder:
        repository = Path(folder) / "repository"
        (repository / MODEL).mkdir(parents=True)
        (repository / MODEL / "1").symlink_to(asked.version_dir.resolve())
        pool = 'parameters { key: "kv_cache_bytes" value { string_value: "512MiB" } }'
        (repository / MODEL / "config.pbtxt").write_text(f'backend: "trtdecode"\n{pool}\n')
        with TritonServer(repository) as server:
            port = free_ports().http
            command = [sys.executable, "-c", "from trtdecode.cli import main; main()", "gateway", str(repository)]
            command += ["--triton", server.grpc_address, "--port", str(port), "--response-cache", "1000"]
            log = (Path(folder) / "gateway.log").open("wb")
            with log, subprocess.Popen(command, stdout=log, stderr=log) as gateway:
                try:
                    _wait_for(port, gateway)
                    figures = asyncio.run(_measure(server.grpc_address, gateway, port, asked))
                finally:
                    gateway.terminate()
    for name, value in figures.items():
        print(f"{name:22} {value:.4g}" if isinstance(value, float) else f"{name:22} {value}")
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    import socket

    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.1)
    raise RuntimeError("the gateway did not start")


if __name__ == "__main__":
    sys.exit(main())
