"""The gateway's bench: that it works and what it writes, not how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trtbuild.pipeline import import_checkpoint

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.triton_server
@pytest.mark.slow
@pytest.mark.usefixtures("make_server")  # skips where there is no tritonserver
def test_gateway_bench_runs_and_reports(endless_version: Path, minilm_folder: Path, tmp_path: Path) -> None:
    """On the chain model. The bench fails by itself where a header is not as its row says, or nothing was cancelled."""
    encoder = import_checkpoint(minilm_folder, tmp_path / "minilm").version_dir
    result = tmp_path / "bench.json"
    command = [
        *(sys.executable, str(ROOT / "scripts" / "benchlib" / "gateway.py"), str(endless_version), str(encoder)),
        *("--pairs", "4", "--saving-pairs", "4", "--disconnects", "3", "--singles", "2", "--repeats", "1"),
        *("--concurrency", "2", "--tokens", "4", "--json", str(result)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    bench = json.loads(result.read_text())
    assert 6 <= bench["chunks"]["chunks"] <= 6 * 4  # three answers a client, at most a chunk a token
    rows = bench["features"] | bench["replicas"]["rows"]
    assert {name: row["pairs"] for name, row in rows.items()} == dict.fromkeys(rows, 4)
    assert len(rows) == 11
    assert rows["semantic cache, miss"]["embedding_call_ms"] > 0
    assert bench["replicas"]["returning"]["KV-aware"] > bench["replicas"]["returning"]["least running"]
    for row in bench["disconnects"].values():
        assert 0 < row["median_ms"] <= row["p95_ms"] == row["max_ms"]
        assert row["repeats"] == 3
