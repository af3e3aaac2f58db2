"""`scripts/bench guided` runs and says what it must, on the chain model: not how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_guided_bench_runs_and_reports(chain_version: Path, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    result = tmp_path / "guided.json"
    script = ROOT / "scripts" / "benchlib" / "guided.py"
    command = [sys.executable, str(script), str(chain_version), "--tokens", "24", "--repeats", "1", "--threads", "1"]
    done = subprocess.run([*command, "--json", str(result)], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode in (0, 1), done.stderr[-3000:]  # 1: a target was missed, which says nothing on this model
    found = json.loads(result.read_text())
    assert [row["sampling"] for row in found["guided"]] == ["greedy", "top_p"]
    assert [row["sampling"] for row in found["sampler"]] == ["greedy", "top_p", "penalties", "logprobs"]
    for row in found["guided"]:
        assert row["ratio"] == pytest.approx(row["guided"] / row["plain"]) and row["plain"] == max(row["runs"]["plain"])
    for row in found["sampler"]:
        assert 0 < row["sample_ms"] < row["step_ms"]
    num_missed = sum(row["ratio"] < 0.85 for row in found["guided"]) + sum(r["share"] > 0.05 for r in found["sampler"])
    assert done.stdout.count("MISSED") == num_missed and (done.returncode == 1) == (num_missed > 0)
