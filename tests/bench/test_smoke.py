"""A short run of the real bench: that it works and what it writes, not how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ["trtdecode-triton", "trtdecode-triton-unary", "trtdecode", "matmuls"]


@pytest.mark.triton_server
@pytest.mark.slow
@pytest.mark.usefixtures("make_server")  # skips where there is no tritonserver
def test_serving_bench_runs_and_reports(smollm2_version: Path, smollm2_gguf: Path, tmp_path: Path) -> None:
    result, plot = tmp_path / "bench.json", tmp_path / "bench.png"
    command = [
        *(sys.executable, str(ROOT / "scripts" / "benchlib" / "serving.py")),
        *("--version-dir", str(smollm2_version), "--gguf", str(smollm2_gguf), "--concurrency", "1", "2"),
        *("--tokens", "6", "--repeats", "1", "--only", *OURS, "--json", str(result), "--plot", str(plot)),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, cwd=ROOT, env=dict(os.environ), check=False
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    bench = json.loads(result.read_text())
    assert bench["unavailable"] == {}
    assert set(bench["systems"]) == set(OURS) - {"matmuls"}
    for figures in bench["systems"].values():
        assert figures["2"]["decode_min"] <= figures["2"]["decode_tokens_per_s"] <= figures["2"]["decode_max"]
        assert figures["2"]["prefill_tokens_per_s"] > 0
    assert set(bench["bound"]) == {"1", "2"}
    ours = bench["systems"]["trtdecode-triton"]["2"]["decode_tokens_per_s"]
    loop = bench["systems"]["trtdecode"]["2"]["decode_tokens_per_s"]
    assert bench["ratios"]["trtdecode"]["2"] == pytest.approx(ours / loop)
    assert bench["machine"]["threads"] >= 1
    assert plot.read_bytes().startswith(b"\x89PNG")
