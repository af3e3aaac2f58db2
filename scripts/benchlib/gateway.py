"""`scripts/bench gateway`: what the gateway costs and saves, in front of a real tritonserver on this machine.

chunks       CPU a streamed chunk, time added to the first token, throughput beside Triton alone
features     each cache and rule: what it adds to a request, what a hit saves
replicas     a second replica, and the KV-aware choice between two
disconnects  from a client's closing its socket until Triton has let go of the request
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway_chunks import measure_chunks
from gateway_disconnects import disconnect_table, measure_disconnects
from gateway_features import feature_table, measure_features
from gateway_process import gateway_process, write_repository
from gateway_replicas import measure_replicas
from own_settings import machine
from systems import end_on_sigterm
from trtdecode.server.launch import TritonServer

PARTS = ("chunks", "features", "replicas", "disconnects")


def main(arguments: Sequence[str]) -> int:
    end_on_sigterm()
    asked = _parse(arguments)
    result: dict[str, Any] = {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes")}
    with tempfile.TemporaryDirectory(prefix="trtdecode-bench-") as folder:
        repository = write_repository(Path(folder), asked.version_dir, asked.encoder_dir)
        with TritonServer(repository) as server, gateway_process(repository, [server]) as plain:
            for part in asked.only:
                result[part], text = _measure(part, repository, server, plain, asked)
                print(f"\n{part}\n{text}", flush=True)
    result["machine"] = machine(len(os.sched_getaffinity(0)))
    print(json.dumps(result["machine"]))
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _measure(part: str, repository: Path, server: TritonServer, plain: Any, asked: argparse.Namespace) -> Any:
    """(figures, their table)."""
    pairs = {"pairs": asked.pairs, "saving_pairs": asked.saving_pairs}
    if part == "chunks":
        figures: Any = asyncio.run(measure_chunks(server.grpc_address, plain, asked))
        lines = [
            f"{name:22} {f'{value:.4g}' if isinstance(value, float) else value}" for name, value in figures.items()
        ]
        return figures, "\n".join(lines)
    if part == "features":
        figures = measure_features(repository, server, plain, **pairs, tokens=asked.answer_tokens)
        return figures, feature_table(figures)
    if part == "replicas":
        with TritonServer(repository) as second:
            rows, shares = measure_replicas(repository, [server, second], plain, **pairs)
        said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        return {"rows": rows, "returning": shares}, f"{feature_table(rows)}\nturns back at the replica before: {said}"
    figures = measure_disconnects(server, plain, asked.disconnects)
    return figures, disconnect_table(figures)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench gateway", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version_dir", type=Path, help="a model version")
    parser.add_argument("encoder_dir", type=Path, help="an encoder's version, for the semantic cache")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--concurrency", type=int, default=8, help="of chunks")
    parser.add_argument("--tokens", type=int, default=64, help="of each streamed answer")
    parser.add_argument("--singles", type=int, default=20, help="requests one after another, for the first token")
    parser.add_argument("--repeats", type=int, default=3, help="of chunks")
    parser.add_argument("--pairs", type=int, default=200, help="of requests with and without a feature")
    parser.add_argument("--saving-pairs", type=int, default=12, help="the same, where a whole answer is saved")
    parser.add_argument("--answer-tokens", type=int, default=32, help="of an answer that a cache saves")
    parser.add_argument("--disconnects", type=int, default=20, help="of each case")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
