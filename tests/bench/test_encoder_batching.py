"""The encoder's bench: that it works and what it writes, not how fast anything is."""

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
@pytest.mark.usefixtures("make_server")  # skips where there is no tritonserver
def test_batching_bench_runs_and_reports(minilm_folder: Path, tmp_path: Path) -> None:
    version = import_checkpoint(minilm_folder, tmp_path / "minilm").version_dir
    command = [
        *(sys.executable, str(ROOT / "scripts" / "benchlib" / "encoder_batching.py"), "--version-dir", str(version)),
        *("--tokens", "8", "--seconds", "0.5", "--turns", "2", "--json", str(tmp_path / "bench.json")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    row = json.loads((tmp_path / "bench.json").read_text())["tokens"]["8"]
    # 16 clients in a closed loop: what arrives while a batch runs is the next one.
    assert 1 < row["batched"]["mean_batch_size"] <= 16
    assert row["single"]["mean_batch_size"] == 1
    assert len(row["ratios"]) == 2
    for figures in (row["batched"], row["single"]):
        assert figures["tokens_per_s"] == 8 * figures["texts_per_s"] > 0
        assert figures["p50_ms"] <= figures["p95_ms"]
