"""Loads that are not one batch of equal lengths: `scripts/bench scenarios [--only poisson prefix burst]`.

    poisson  64 requests at once, output lengths drawn from Poisson(256), at most 32 run: output tokens/s, end to end
    prefix   a system prompt of 1,024 tokens: milliseconds to the first token, uncached and cached (a fresh one each
             time), then 32 requests that share it, output tokens/s
    burst    requests arrive at random (Poisson) at a base rate that keeps the server three quarters busy, then 30 %
             more: TTFT and inter-token latency of both halves, milliseconds; ours through Triton only

Ours computes as the peers do by themselves (`-fast` in `scripts/bench serving`). Systems take turns; medians of
`--repeats` are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from own_settings import fast_settings, machine, settings
from systems import Process, System, Triton, TritonBench, Unavailable, end_on_sigterm, own_python, peer_command
from trtdecode.client import StreamStats

PREFIX_LEN = 1024
SCENARIOS = ("poisson", "prefix", "burst")


class Bench:
    """The systems of one run; each scenario returns figures by system."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.random = np.random.default_rng(1234)
        caching = [*fast_settings(asked.version_dir), *asked.set, "enable_prefix_caching=true", "max_num_seqs=32"]
        self.server = TritonBench(asked.version_dir, settings(asked.threads, caching))
        self.systems: list[System] = [Triton("trtdecode-triton", self.server, stream=True)]
        self.unavailable: dict[str, str] = {}
        self._log = Path(tempfile.mkstemp(prefix="trtdecode-bench-", suffix=".log")[1])
        self._add("trtdecode", own_python(), asked.version_dir, *caching)
        self._add("openvino_genai", asked.peers_python, asked.gguf, "prefix-caching", "max-num-seqs=32")
        self._add("llama_cpp", asked.peers_python, asked.gguf)

    def _add(self, file: str, python: str, model: Path, *more: str) -> None:
        name = file.replace("_", "-").replace("llama-cpp", "llama.cpp")
        try:
            if not python:
                raise Unavailable("no --peers-python given")
            self.systems.append(Process(name, peer_command(file, python, model, self.asked.threads, *more), self._log))
        except Unavailable as error:
            self.unavailable[name] = str(error)

    def prompts(self, number: int, length: int) -> list[list[int]]:
        prompts: list[list[int]] = self.random.integers(100, 40_000, (number, length)).tolist()
        return prompts

    def in_turns(self, measure: Callable[[System], dict[str, float]], systems: list[System]) -> dict[str, Any]:
        """Medians of every figure over the repeats, after a warm-up."""
        rows: dict[str, list[dict[str, float]]] = {system.name: [] for system in systems}
        for repeat in range(self.asked.repeats + 1):
            for system in systems:
                row = measure(system)
                if repeat:
                    rows[system.name].append(row)
        return {
            name: {figure: statistics.median(row[figure] for row in values) for figure in values[0]}
            for name, values in rows.items()
        }

    def poisson(self) -> dict[str, Any]:
        """llama.cpp has no scheduler: it gets two halves of 32, one after the other."""
        number = self.asked.requests
        lengths = self.random.poisson(256, number).tolist()

        def measure(system: System) -> dict[str, float]:
            prompts = self.prompts(number, 32)
            part = 32 if system.name == "llama.cpp" else number
            seconds, total = 0.0, 0
            for begin in range(0, number, part):
                took, tokens = system.measure(prompts[begin : begin + part], lengths[begin : begin + part])
                seconds, total = seconds + took, total + tokens
            assert total == sum(lengths), f"{system.name} gave {total} tokens, not {sum(lengths)}"
            return {"tokens_per_s": total / seconds}

        return self.in_turns(measure, self.systems)

    def prefix(self) -> dict[str, Any]:
        """llama.cpp's harness clears its cache between runs, so it is left out."""

        def measure(system: System) -> dict[str, float]:
            (prefix,) = self.prompts(1, PREFIX_LEN)
            prompts = [prefix + own for own in self.prompts(34, 16)]
            uncached, _ = system.measure(prompts[:1], [1])
            cached, _ = system.measure(prompts[1:2], [1])
            seconds, total = system.measure(prompts[2:], [64] * 32)
            return {
                "ttft_uncached_ms": 1000 * uncached,
                "ttft_cached_ms": 1000 * cached,
                "uncached_over_cached": uncached / cached,
                "shared_tokens_per_s": total / seconds,
            }

        return self.in_turns(measure, [system for system in self.systems if system.name != "llama.cpp"])

    def burst(self) -> dict[str, Any]:
        """Open loop: a late answer delays no arrival."""
        num_prompt, num_tokens, half_s = 64, 64, self.asked.burst_seconds
        # What the server sustains: a full batch of such requests.
        seconds, _ = self.systems[0].measure(self.prompts(32, num_prompt), [num_tokens] * 32)
        base = 0.75 * 32 / seconds
        rates = [base, 1.3 * base]
        arrivals: list[tuple[float, int]] = []
        for half, rate in enumerate(rates):
            now = half * half_s
            while (now := now + float(self.random.exponential(1 / rate))) < (half + 1) * half_s:
                arrivals.append((now, half))
        stats: list[list[StreamStats]] = [[], []]
        lock = threading.Lock()
        start = time.perf_counter()

        def one(due: float, half: int, prompt: list[int]) -> None:
            own = StreamStats(start + due)
            sampling = {"temperature": 0.0, "max_tokens": num_tokens, "ignore_eos": True}
            for chunk in self.server.client.stream(prompt, sampling):
                own.add(chunk)
            with lock:
                stats[half].append(own)

        threads = []
        for (due, half), prompt in zip(arrivals, self.prompts(len(arrivals), num_prompt), strict=True):
            time.sleep(max(0.0, start + due - time.perf_counter()))
            threads.append(threading.Thread(target=one, args=(due, half, prompt)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        assert sum(map(len, stats)) == len(arrivals), "a request failed; see the server's log"
        result: dict[str, Any] = {}
        for name, rate, values in zip(("base", "burst"), rates, stats, strict=True):
            ttft, itl = [value.ttft_ms for value in values], [value.itl_ms for value in values]
            result[name] = {
                "requests_per_s": rate,
                "requests": float(len(values)),
                "ttft_p50_ms": float(np.percentile(ttft, 50)),
                "ttft_p95_ms": float(np.percentile(ttft, 95)),
                "itl_p50_ms": float(np.percentile(itl, 50)),
                "itl_p95_ms": float(np.percentile(itl, 95)),
            }
        return result

    def close(self) -> None:
        for system in self.systems:
            system.close()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench scenarios", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version-dir", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--peers-python", default="")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64, help="of poisson")
    parser.add_argument("--burst-seconds", type=float, default=20.0, help="of each half")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of our config.pbtxt")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    end_on_sigterm()
    bench = Bench(asked)
    result: dict[str, Any] = {
        "machine": machine(asked.threads),
        "systems": {system.name: system.about for system in bench.systems},
        "unavailable": bench.unavailable,
    }
    for name, about in result["systems"].items():
        print(f"{name}: {about['precision']}")
    for name, reason in bench.unavailable.items():
        print(f"not measured: {name}: {reason}")
    try:
        for scenario in asked.only:
            result[scenario] = getattr(bench, scenario)()
            print(f"\n{scenario}")
            for name, figures in result[scenario].items():
                print(f"  {name:20}" + ", ".join(f"{figure} {value:.4g}" for figure, value in figures.items()))
    finally:
        bench.close()
    print(f"\n{json.dumps(result['machine'])}")
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
