"""How fast a model is ready and what memory it takes: `scripts/bench start`.

Every start is a tritonserver of its own. `cold` throws the version's files out of the page cache first; `warm` finds
them there. Peak memory is the stub's (VmHWM: weights, KV pages touched, libraries) after 8 requests of 64 tokens; the
server process is reported beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from own_settings import machine, settings
from systems import Triton, TritonBench, end_on_sigterm


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench start", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version-dir", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of our config.pbtxt")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    end_on_sigterm()
    threads = len(os.sched_getaffinity(0))
    rows: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(asked.repeats):
        for kind, values in rows.items():
            if kind == "cold":
                _forget(asked.version_dir)
            values.append(_start(asked.version_dir, settings(threads, asked.set)))
    size = sum(path.stat().st_size for path in asked.version_dir.rglob("*") if path.is_file())
    result: dict[str, Any] = {"machine": machine(threads), "version_mb": size / 1e6}
    for kind, values in rows.items():
        result[kind] = {name: statistics.median(row[name] for row in values) for name in values[0]}
    print(f"version folder {result['version_mb']:.0f} MB")
    for kind in rows:
        print(f"{kind:>5} start: " + ", ".join(f"{name} {value:.4g}" for name, value in result[kind].items()))
    print(json.dumps(result["machine"]))
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0


def _start(version_dir: Path, parameters: dict[str, str]) -> dict[str, float]:
    began = time.perf_counter()
    bench = TritonBench(version_dir, parameters)
    ready = time.perf_counter() - began
    try:
        (stub,) = bench.server.stubs()
        at_ready = _status_mb(stub.pid, "VmHWM")
        Triton("trtdecode-triton", bench, stream=True).measure([[index + 100] * 32 for index in range(8)], [64] * 8)
        return {
            "ready_s": ready,
            "stub_peak_mb_at_ready": at_ready,
            "stub_peak_mb": _status_mb(stub.pid, "VmHWM"),
            "server_mb": _status_mb(bench.server.pid, "VmRSS"),
        }
    finally:
        bench.close()


def _status_mb(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"/proc/{pid}/status has no {field}")


def _forget(version_dir: Path) -> None:
    """Asks the kernel to drop the files' pages; dirty ones are written first."""
    for path in version_dir.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
