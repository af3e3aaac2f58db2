"""Sends many requests, a third of which are cancelled, and checks that everything is back where it was.

    scripts/soak --requests 10000                in process, then against a real tritonserver
    scripts/soak --only server --requests 500

Levels are taken after a tenth of the requests (caches and pools have grown to their size by then), half-way, and at
the end. Exit status: 0 all is back, 1 something is not (it is named), 2 the server crashed (its version is named).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from levels import MIB, Levels, differences
from soak_replica import ReplicaSoak
from soak_server import ServerSoak
from traffic_mix import Job, jobs
from trtdecode.config import ServingConfig
from watched_server import ServerCrashed, WatchedServer, import_chain

#: A pool that preempts now and then, by swap until the host pool is full, and a queue long enough for all clients.
PARAMETERS = {
    "kv_cache_bytes": "640KiB",
    "swap_space_bytes": "256KiB",
    "max_num_seqs": "32",
    "max_num_batched_tokens": "256",
    "num_threads": "1",
}
#: What should have happened, so that nothing leaking means something.
WORK = ("trtdecode_preemptions_total", "trtdecode_swapped_out_blocks_total", "trtdecode_prefix_cache_hit_tokens_total")


def in_parts(
    run: Callable[[Iterable[Job]], None], levels: Callable[[int], Levels], num_requests: int, seed: int
) -> list[Levels]:
    """Levels before anything, after a tenth, half-way and at the end."""
    source = jobs(seed, num_requests)
    taken = [levels(0)]
    for end in (num_requests // 10, num_requests // 2, num_requests):
        run(islice(source, end - taken[-1].num_requests))
        taken.append(levels(end))
        print("  " + taken[-1].row(), flush=True)
    return taken


def report(
    name: str, taken: list[Levels], faults: list[str], ends: Counter[str], seconds: float, max_growth: int
) -> dict[str, Any]:
    """Prints the verdict of one soak and returns it for the JSON."""
    problems = differences(taken[1], taken[-1], max_growth) + faults
    print(f"  {seconds:.0f} s; ends: {', '.join(f'{end} {count}' for end, count in sorted(ends.items()))}")
    for problem in problems:
        print(f"  PROBLEM: {problem}")
    print(f"{name}: {'all is back where it was' if not problems else f'{len(problems)} problems'}", flush=True)
    levels = [entry.as_json() for entry in taken]
    return {"levels": levels, "ends": dict(ends), "problems": problems, "seconds": round(seconds, 1)}


def soak_replica(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="trtdecode-soak-") as folder:
        version_dir = arguments.version_dir or import_chain(Path(folder))
        print("in process:", flush=True)
        begin = time.monotonic()
        with ReplicaSoak(version_dir, ServingConfig.from_parameters(PARAMETERS)) as soak:
            taken = in_parts(soak.run, lambda _: soak.levels(), arguments.requests, arguments.seed)
            faults = soak.faults()
            print("  " + ", ".join(f"{name} {soak.counter(name)}" for name in WORK))
        return report("in process", taken, faults, soak.ends, time.monotonic() - begin, arguments.max_growth * MIB)


def soak_server(arguments: argparse.Namespace) -> dict[str, Any]:
    with WatchedServer(PARAMETERS, arguments.version_dir) as watched:
        print(f"tritonserver {watched.version}:", flush=True)
        begin = time.monotonic()
        soak = ServerSoak(watched)
        taken = in_parts(soak.run, soak.levels, arguments.requests, arguments.seed)
        print("  " + ", ".join(f"{name} {watched.metric(name):g}" for name in WORK))
        names = ("trtdecode_step_failures_total", "trtdecode_recoveries_total")
        faults = [f"{name} is {watched.metric(name):g}" for name in names if watched.metric(name)] + soak.failures
        result = report("server", taken, faults, soak.ends, time.monotonic() - begin, arguments.max_growth * MIB)
        return {**result, "server": watched.version}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("process", "server"))
    parser.add_argument("--version-dir", type=Path, help="a version folder; default: the tests' chain model")
    parser.add_argument(
        "--max-growth", type=float, default=24, metavar="MIB", help="of any process, since the first tenth"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args(argv)
    results: dict[str, Any] = {"requests": arguments.requests, "seed": arguments.seed}
    try:
        if arguments.only != "server":
            results["process"] = soak_replica(arguments)
        if arguments.only != "process":
            results["server"] = soak_server(arguments)
    except ServerCrashed as crash:
        print(f"CRASH: {crash}")
        return 2
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    return int(any(part["problems"] for part in results.values() if isinstance(part, dict)))


if __name__ == "__main__":
    sys.exit(main())
