"""`scripts/bench serving`: every system on the same token ids, in turns, on this machine, in one run.

Decode and prefill are told apart by two runs: one token for every prompt (prefill and one step), then `--tokens`. The
difference is decode alone. Repeats are interleaved over the systems (A B C A B C ...), so that a machine that drifts
drifts for all; medians and spreads are printed, and ratios are of medians from this run only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from own_settings import exact_settings, fast_settings, machine, settings
from systems import (
    PlainTriton,
    Process,
    System,
    Triton,
    TritonBench,
    Unavailable,
    end_on_sigterm,
    own_python,
    peer_command,
)
from trtdecode.errors import TrtdecodeError

OURS = "trtdecode-triton"
SEED = 1234


def main(arguments: list[str]) -> int:
    end_on_sigterm()
    asked = _parse(arguments)
    systems, missing = _start(asked)
    try:
        result = _run(systems, asked)
    finally:
        for system in systems:
            system.close()
    result["unavailable"] = missing
    print(_table(result, asked.concurrency))
    for name, reason in missing.items():
        print(f"not measured: {name}: {reason}")
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    if asked.plot:
        _plot(result, asked.concurrency, asked.plot)
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench serving", description=__doc__)
    parser.add_argument("--version-dir", type=Path, required=True, help="ours: a version folder")
    parser.add_argument(
        "--fast-version-dir", type=Path, help="ours again, as the -fast rows serve it; default the same"
    )
    parser.add_argument("--gguf", type=Path, required=True, help="theirs: the same model as GGUF")
    parser.add_argument("--peers-python", default="", help="Python of the peers' venv; none: only ours")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--llama-max", type=int, default=0, help="llama.cpp is not asked beyond so many requests")
    parser.add_argument("--only", nargs="+", help="names of systems")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of our config.pbtxt")
    parser.add_argument(
        "--fast-set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the rows called -fast: the same, but computed in a precision like the peers' own",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="PNG")
    return parser.parse_args(arguments)


def _start(asked: argparse.Namespace) -> tuple[list[System], dict[str, str]]:
    """Starts every system that can run here; the others are named with the reason."""
    log = Path(tempfile.mkstemp(prefix="trtdecode-bench-", suffix=".log")[1])
    threads, version_dir, gguf = asked.threads, asked.version_dir, asked.gguf
    exact = [*exact_settings(version_dir), *asked.set]
    fast_dir = asked.fast_version_dir or version_dir
    fast = [*fast_settings(fast_dir), *asked.set, *asked.fast_set]
    servers: dict[tuple[str, ...], TritonBench] = {}

    def triton(folder: Path, more: list[str], *, stream: bool) -> Any:
        def start(name: str) -> Triton:
            if tuple(more) not in servers:
                servers[tuple(more)] = TritonBench(folder, settings(threads, more))
            return Triton(name, servers[tuple(more)], stream=stream)

        return start

    def peer(file: str, max_concurrency: int = 0) -> Any:
        def start(name: str) -> Process:
            if not asked.peers_python:
                raise Unavailable("no --peers-python given")
            process = Process(name, peer_command(file, asked.peers_python, gguf, threads), log)
            process.max_concurrency = max_concurrency
            return process

        return start

    def own(folder: Path, *more: str) -> Any:
        command = peer_command("trtdecode", own_python(), folder, threads, *more)
        return lambda name: Process(name, command, log)

    makers = {
        OURS: triton(version_dir, exact, stream=True),
        f"{OURS}-unary": triton(version_dir, exact, stream=False),
        "trtdecode": own(version_dir, *exact),
        "matmuls": own(version_dir, "bound", *exact),
        f"{OURS}-fast": triton(fast_dir, fast, stream=True),
        f"{OURS}-fast-unary": triton(fast_dir, fast, stream=False),
        "trtdecode-fast": own(fast_dir, *fast),
        "matmuls-fast": own(fast_dir, "bound", *fast),
        "openvino-genai": peer("openvino_genai"),
        "llama.cpp": peer("llama_cpp", max_concurrency=asked.llama_max),
        "transformers": peer("transformers", max_concurrency=8),  # minutes a batch beyond
        PlainTriton.name: lambda name: PlainTriton(gguf, threads),
    }
    systems: list[System] = []
    missing: dict[str, str] = {}
    for name, make in makers.items():
        if asked.only and name not in asked.only:
            continue
        print(f"starting {name}", flush=True)
        try:
            systems.append(make(name))
        except (Unavailable, TrtdecodeError, OSError, RuntimeError) as error:
            missing[name] = str(error)
    return systems, missing


def _run(systems: list[System], asked: argparse.Namespace) -> dict[str, Any]:
    rates: dict[str, dict[int, list[float]]] = {system.name: {} for system in systems}
    prefills: dict[str, dict[int, list[float]]] = {system.name: {} for system in systems}
    random = np.random.default_rng(SEED)
    for repeat in range(asked.repeats + 1):  # the first is a warm-up: short, and not counted
        tokens = asked.tokens if repeat else min(asked.tokens, 8)
        for concurrency in asked.concurrency:
            prompts = random.integers(100, 40_000, (concurrency, asked.prompt_tokens)).tolist()
            for system in systems:
                if system.max_concurrency and concurrency > system.max_concurrency:
                    continue
                first, _ = system.measure(prompts, [1] * concurrency)
                whole, total = system.measure(prompts, [tokens] * concurrency)
                expected = concurrency * tokens
                assert total == expected, f"{system.name} gave {total} tokens, not {expected}"
                if repeat:
                    rate = concurrency * (tokens - 1) / max(whole - first, 1e-9)
                    rates[system.name].setdefault(concurrency, []).append(rate)
                    prefills[system.name].setdefault(concurrency, []).append(concurrency * asked.prompt_tokens / first)
            print(f"repeat {repeat} of {asked.repeats}, concurrency {concurrency}", flush=True)
    return _result(systems, asked, rates, prefills)


def _result(systems: list[System], asked: argparse.Namespace, rates: dict, prefills: dict) -> dict[str, Any]:
    table = {
        system.name: {
            "about": system.about,
            **{
                str(n): {
                    "decode_tokens_per_s": statistics.median(values),
                    "decode_min": min(values),
                    "decode_max": max(values),
                    "prefill_tokens_per_s": statistics.median(prefills[system.name][n]),
                    "repeats": len(values),
                }
                for n, values in rates[system.name].items()
            },
        }
        for system in systems
    }
    bounds = {
        name: {n: row["decode_tokens_per_s"] for n, row in table.pop(f"matmuls{name}", {}).items() if n != "about"}
        for name in ("", "-fast")
    }
    ratios = {f"ratios{name}": _ratios(table, name, bounds[name]) for name in bounds}
    return {
        "machine": machine(asked.threads),
        "settings": {
            "tokens": asked.tokens,
            "prompt_tokens": asked.prompt_tokens,
            "repeats": asked.repeats,
            "greedy": True,
        },
        "bound": bounds[""],
        "bound-fast": bounds["-fast"],
        "systems": table,
        **ratios,
    }


def _ratios(table: dict[str, Any], kind: str, bound: dict[str, float]) -> dict[str, dict[str, float]]:
    """What ours through Triton is of every other system; of the bound, what ours in process is."""
    mine = table.get(OURS + kind, {})
    ratios = {
        name: {
            n: mine[n]["decode_tokens_per_s"] / row["decode_tokens_per_s"]
            for n, row in figures.items()
            if n != "about" and n in mine
        }
        for name, figures in table.items()
        if name != OURS + kind
    }
    in_process = table.get(f"trtdecode{kind}", {})
    ratios["bound"] = {n: in_process[n]["decode_tokens_per_s"] / rate for n, rate in bound.items() if n in in_process}
    return ratios


def _table(result: dict[str, Any], concurrency: list[int]) -> str:
    """Decode tokens/s: median (lowest to highest), then what ours through Triton is of it, exact and fast."""
    levels = [str(n) for n in concurrency]
    head = "| system | " + " | ".join(f"{n} requests" for n in levels) + " | precision |"
    lines = [head, "|---" * (len(levels) + 2) + "|"]
    for name, figures in result["systems"].items():
        cells = [_cell(result, name, figures[n], n) if n in figures else "-" for n in levels]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {figures['about']['precision']} |")
    for kind in ("", "-fast"):
        bound, shares = result[f"bound{kind}"], result[f"ratios{kind}"]["bound"]
        if bound:
            cells = [f"{bound[n]:.0f} (in process {shares[n]:.0%})" if n in shares else "-" for n in levels]
            lines.append(f"| matmuls{kind} alone | " + " | ".join(cells) + " | bound |")
    lines.append(f"\nxA, xB: {OURS} and {OURS}-fast divided by the system")
    lines.append(json.dumps(result["machine"]))
    return "\n".join(lines)


def _cell(result: dict[str, Any], name: str, row: dict[str, float], level: str) -> str:
    text = f"{row['decode_tokens_per_s']:.0f} ({row['decode_min']:.0f}-{row['decode_max']:.0f})"
    if name.startswith("trtdecode"):
        kind = "-fast" if "-fast" in name else ""
        ratios = [result[f"ratios{kind}"].get(name, {}).get(level)]
    else:
        ratios = [result[f"ratios{kind}"].get(name, {}).get(level) for kind in ("", "-fast")]
    return text + "".join(f" x{ratio:.2f}" for ratio in ratios if ratio)


def _plot(result: dict[str, Any], concurrency: list[int], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, figures in result["systems"].items():
        levels = [n for n in concurrency if str(n) in figures]
        axes.plot(levels, [figures[str(n)]["decode_tokens_per_s"] for n in levels], marker="o", label=name)
    for kind, style in (("", "k--"), ("-fast", "k:")):
        levels = [n for n in concurrency if str(n) in result[f"bound{kind}"]]
        if levels:
            axes.plot(levels, [result[f"bound{kind}"][str(n)] for n in levels], style, label=f"matmuls{kind} alone")
    axes.set_xscale("log", base=2)
    axes.set_xticks(concurrency, [str(n) for n in concurrency])
    axes.set_xlabel("concurrent requests")
    axes.set_ylabel("decode tokens/s")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
