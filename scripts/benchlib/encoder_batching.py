"""`scripts/bench encoder`: what Triton's dynamic batcher is worth for an encoder, in one run on this machine.

The same version is served twice by one tritonserver: as it comes (dynamic batching), and with max_batch_size 1. A
closed loop of clients asks one, then the other, in turns, so that a machine that drifts drifts for both; ratios are of
the two halves of one turn, and medians of turns are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from closed_loop import LoopResult, infer_request, run_closed_loop
from systems import end_on_sigterm
from trtdecode.server.launch import TritonServer

#: Name -> the rest of its config.pbtxt.
MODELS = {"batched": "", "single": "max_batch_size: 1"}
NUM_TEXTS = 256


def main(arguments: list[str]) -> int:
    end_on_sigterm()
    asked = _parse(arguments)
    with tempfile.TemporaryDirectory(prefix="trtdecode-bench-") as folder:
        repository = _repository(Path(folder), asked)
        with TritonServer(repository, log_path=Path(folder) / "server.log") as server:
            result = _measure(server, asked)
    print(_table(result))
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench encoder", description=__doc__)
    parser.add_argument("--version-dir", type=Path, required=True, help="an imported encoder")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8, 32], help="of each text, special ones included")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each half of a turn")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--compute-precision", default="f32")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def _repository(folder: Path, asked: argparse.Namespace) -> Path:
    parameter = f'parameters {{ key: "compute_precision" value {{ string_value: "{asked.compute_precision}" }} }}'
    for name, rest in MODELS.items():
        model_dir = folder / "models" / name
        shutil.copytree(asked.version_dir, model_dir / "1")
        (model_dir / "config.pbtxt").write_text(f'backend: "trtdecode"\n{parameter}\n{rest}\n', "utf-8")
    return folder / "models"


def _texts(version_dir: Path, num_tokens: int) -> list[str]:
    """Texts of exactly `num_tokens` tokens: whole words of the vocabulary between two special tokens."""
    vocabulary = json.loads((version_dir / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    words = [word for word in vocabulary if re.fullmatch("[a-z]{3,9}", word)]
    choose = np.random.default_rng(num_tokens).choice
    return [" ".join(choose(words, num_tokens - 2)) for _ in range(NUM_TEXTS)]


def _measure(server: TritonServer, asked: argparse.Namespace) -> dict[str, Any]:
    host, port = server.http_address.split(":")
    rows: dict[str, Any] = {}
    for num_tokens in asked.tokens:
        texts = _texts(asked.version_dir, num_tokens)
        requests = {name: [infer_request(host, name, text) for text in texts] for name in MODELS}
        for name in MODELS:  # the first shapes are compiled now
            run_closed_loop((host, int(port)), requests[name], asked.concurrency, asked.seconds / 3)
        runs: dict[str, list[LoopResult]] = {name: [] for name in MODELS}
        before = {name: _counts(server, name) for name in MODELS}
        for _ in range(asked.turns):
            for name in MODELS:
                runs[name].append(run_closed_loop((host, int(port)), requests[name], asked.concurrency, asked.seconds))
        rows[str(num_tokens)] = {
            "ratios": [many.per_second / one.per_second for many, one in zip(*runs.values(), strict=True)],
            **{name: _figures(runs[name], before[name], _counts(server, name), num_tokens) for name in MODELS},
        }
    return {
        "model": asked.version_dir.parent.name,
        "concurrency": asked.concurrency,
        "compute_precision": asked.compute_precision,
        "machine": {"cpus": len(os.sched_getaffinity(0)), "processor": platform.processor() or platform.machine()},
        "tokens": rows,
    }


def _counts(server: TritonServer, model: str) -> tuple[int, int]:
    """(texts, executions) so far, by Triton's own count."""
    stats = server.client.call("GET", f"/v2/models/{model}/stats").json()["model_stats"][0]
    return stats["inference_count"], stats["execution_count"]


def _figures(
    runs: list[LoopResult], before: tuple[int, int], after: tuple[int, int], num_tokens: int
) -> dict[str, float]:
    latencies = np.concatenate([run.latencies for run in runs]) * 1000
    rate = statistics.median(run.per_second for run in runs)
    return {
        "texts_per_s": rate,
        "tokens_per_s": rate * num_tokens,
        "mean_batch_size": (after[0] - before[0]) / (after[1] - before[1]),
        "p50_ms": float(np.percentile(latencies, 50)),
        "p95_ms": float(np.percentile(latencies, 95)),
    }


def _table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['model']}, {result['compute_precision']}, concurrency {result['concurrency']}, "
        f"{result['machine']['cpus']} CPUs",
        f"{'tokens':>6}  {'':8} {'texts/s':>8} {'mean batch':>10} {'p50 ms':>8} {'p95 ms':>8}  ratio (each turn)",
    ]
    for num_tokens, row in result["tokens"].items():
        for name in MODELS:
            figures = row[name]
            ratio = f"{statistics.median(row['ratios']):.2f} ({', '.join(f'{ratio:.2f}' for ratio in row['ratios'])})"
            lines.append(
                f"{num_tokens:>6}  {name:8} {figures['texts_per_s']:8.0f} {figures['mean_batch_size']:10.1f} "
                f"{figures['p50_ms']:8.1f} {figures['p95_ms']:8.1f}  {ratio if name == 'batched' else ''}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
