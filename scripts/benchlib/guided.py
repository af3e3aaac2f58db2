"""What structured output costs, and what the sampler takes of a step: `scripts/bench guided`.

Throughput: 16 streams of the same prompts decode as many tokens with a JSON schema as without, in turns, so that a
machine that drifts drifts for both. The schema's arrays are too long to end within the run, and EOS is ignored: every
stream has the same number of tokens. The ratio of the best runs should stay above 0.85.

Share: the plain loop (`overlap: false`) decodes 32 streams; `sample`'s wall time and the step's, of steps in which all
choose a token. It should stay below 0.05; the overlapped loop does not hide it.

Other work on the machine only ever adds time: so the best run, and the fastest tenth of the steps, are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from trtdecode.config import ServingConfig
from trtdecode.replica import Replica
from trtdecode.request import TokenEvent
from trtdecode.sampling.params import SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 500},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 500},
    },
    "required": ["names", "sizes"],
    "additionalProperties": False,
}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "penalties": {"temperature": 0.8, "top_k": 50, "repetition_penalty": 1.1},
    "logprobs": {"temperature": 0.8, "logprobs": 1},
}
PROMPT = "List some animals and their sizes as JSON. Number {}:\n"
MAX_RATIO_LOST, MAX_SHARE = 0.15, 0.05


def decode(replica: Replica, num_streams: int, **fields: Any) -> float:
    """Tokens a second of `num_streams` streams that start together."""
    open_streams = threading.Semaphore(0)
    num_tokens = 0

    def on_event(event: TokenEvent) -> None:
        nonlocal num_tokens
        num_tokens += len(event.token_ids)
        if event.is_final:
            assert event.error is None, event.error
            open_streams.release()

    calls = []
    for index in range(num_streams):
        params = SamplingParams(ignore_eos=True, seed=index, **fields)
        calls.append(replica.samples(replica.encode(PROMPT.format(index)), params, on_event=on_event))
    begin = time.perf_counter()
    for samples in calls:
        replica.submit(samples)
    for _ in calls:
        open_streams.acquire()
    assert num_tokens == num_streams * fields["max_tokens"], "a stream ended early"
    return num_tokens / (time.perf_counter() - begin)


def throughput(replica: Replica, num_tokens: int, repeats: int) -> list[dict[str, Any]]:
    """One row a way to sample: tokens a second without and with the schema, and their ratio."""
    rows = []
    for name in ("greedy", "top_p"):
        common = {**SAMPLING[name], "max_tokens": num_tokens}
        ways: dict[str, dict[str, Any]] = {"plain": common, "guided": {**common, "guided_json": json.dumps(SCHEMA)}}
        for fields in ways.values():
            decode(replica, 16, **{**fields, "max_tokens": 4})  # compiles the grammar, fills the prefix cache
        speeds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, fields in ways.items():
                speeds[way].append(decode(replica, 16, **fields))
        best = {way: max(values) for way, values in speeds.items()}
        rows.append({"sampling": name, **best, "ratio": best["guided"] / best["plain"], "runs": speeds})
    return rows


class SampleTimer:
    """Times `sample` and whole steps of a plain loop, of steps in which `num_rows` tokens are chosen."""

    def __init__(self, loop: Any, num_rows: int) -> None:
        self._sample, self._step, self._num_rows = loop._sampler.sample, loop.step, num_rows
        self._last: float | None = None
        self.sample_s: list[float] = []
        self.step_s: list[float] = []
        loop._sampler.sample, loop.step = self.sample, self.step

    def sample(self, result: Any, requests: Any) -> Any:
        begin = time.perf_counter()
        chosen = self._sample(result, requests)
        if len(requests) == self._num_rows:
            self._last = time.perf_counter() - begin
        return chosen

    def step(self) -> bool:
        self._last = None
        begin = time.perf_counter()
        is_busy: bool = self._step()
        if self._last is not None:
            self.sample_s.append(self._last)
            self.step_s.append(time.perf_counter() - begin)
        return is_busy

    def restart(self) -> None:
        self.sample_s, self.step_s = [], []


def fastest(seconds: list[float]) -> float:
    """Upper end of the fastest tenth, in milliseconds."""
    return 1000 * sorted(seconds)[len(seconds) // 10]


def shares(version_dir: Path, threads: int, num_tokens: int) -> list[dict[str, Any]]:
    """One row a way to sample: milliseconds of `sample` and of the step, and the share."""
    rows = []
    config = ServingConfig(overlap=False, max_num_seqs=32, num_threads=threads, kv_cache_bytes=1 << 29)
    with Replica.load(version_dir, config) as replica:
        timer = SampleTimer(replica._loop, 32)
        for name, fields in SAMPLING.items():
            timer.restart()
            decode(replica, 32, **fields, max_tokens=num_tokens)
            sample_ms, step_ms = fastest(timer.sample_s), fastest(timer.step_s)
            rows.append({"sampling": name, "sample_ms": sample_ms, "step_ms": step_ms, "share": sample_ms / step_ms})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version_dir", type=Path)
    parser.add_argument("--tokens", type=int, default=32, help="of each stream")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="of the executor; default one a physical core")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    config = ServingConfig(max_num_seqs=16, num_threads=arguments.threads, kv_cache_bytes=1 << 29)
    with Replica.load(arguments.version_dir, config) as replica:
        vocab_size = replica.spec.vocab_size
        guided = throughput(replica, arguments.tokens, arguments.repeats)
    print(f"16 streams, {arguments.tokens} tokens each, vocabulary {vocab_size}; tokens/s")
    for row in guided:
        print(
            f"  {row['sampling']:<10} plain {row['plain']:7.1f}  guided {row['guided']:7.1f}  ratio {row['ratio']:.3f}"
        )
    sampler = shares(arguments.version_dir, arguments.threads, max(8, arguments.tokens // 2))
    print("32 streams; ms")
    for row in sampler:
        print(
            f"  {row['sampling']:<10} sample {row['sample_ms']:6.2f}  step {row['step_ms']:7.2f}  "
            f"share {100 * row['share']:.2f} %"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"guided": guided, "sampler": sampler}, indent=1))
    missed = [row for row in guided if row["ratio"] < 1 - MAX_RATIO_LOST]
    missed += [row for row in sampler if row["share"] > MAX_SHARE]
    for row in missed:
        print(f"MISSED: {row}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
