"""scripts/gpu_check without a GPU: its refusal, its report, and its checks on the recording device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attention_speed
import executor_checks
import gpu_check
import pytest
import sampling_check
from check_report import Check, Skipped, run_checks
from conformance.tiny_graph import TinySpec, TinyWeights
from executor.recording_device import RecordingDevice
from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.devices import Devices

ROOT = Path(__file__).resolve().parents[2]
TINY = TinySpec(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, mlp_size=16, vocab_size=31, max_positions=64)


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_one_line_and_exits_with_3() -> None:
    environment = {**os.environ, "TRTDECODE_PYTHON": sys.executable}
    done = subprocess.run(
        [ROOT / "scripts" / "gpu_check"], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.returncode == 3
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpu_check: no NVIDIA driver") and line.endswith("run it on a machine with an NVIDIA GPU")


def fail() -> dict[str, object]:
    raise AssertionError("a logit is off by 3")


def skip() -> dict[str, object]:
    raise Skipped("pytest is not installed")


def test_the_report_has_every_check_whatever_happens() -> None:
    times = iter([0.0, 0.0, 1.0, 1.0, 2.5, 2.5, 3.0, 3.0, 8.0, 8.0, 8.0, 8.0])
    said: list[str] = []
    checks = [
        Check("good", lambda: {"x": 1}),
        Check("bad", fail),
        Check("absent", skip),
        Check("broken", lambda: {"x": 1 // 0}),
        Check("late", lambda: {"x": 1}),
    ]
    report = run_checks(checks, budget=5.0, clock=lambda: next(times), say=said.append)
    json.dumps(report)
    assert [(check["name"], check["status"], check["seconds"]) for check in report["checks"]] == [
        ("good", "passed", 1.0),
        ("bad", "failed", 1.5),
        ("absent", "skipped", 0.5),
        ("broken", "failed", 5.0),
        ("late", "skipped", 0.0),
    ]
    reasons = [check.get("reason") for check in report["checks"]]
    assert reasons[1:3] == ["a logit is off by 3", "pytest is not installed"]
    assert reasons[3].startswith("ZeroDivisionError") and reasons[4] == "the time budget of 5 s is spent"
    assert said[1] == "bad: failed in 1.5 s (a logit is off by 3)"


def test_a_failed_check_is_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "find_devices", lambda: Devices(gpu_sms=(90,)))
    for check, status in ((Check("one", dict), 0), (Check("one", fail), 1), (Check("one", skip), 0)):
        monkeypatch.setattr(gpu_check, "all_checks", lambda _dir, check=check: [check])
        assert gpu_check.main(["--json", str(tmp_path / "deep" / "report.json")]) == status
        assert len(json.loads((tmp_path / "deep" / "report.json").read_text())["checks"]) == 1


def test_checks_are_chosen_by_name() -> None:
    checks = gpu_check.all_checks(None)
    assert len(gpu_check.select(checks, "")) == len(checks) >= 6
    assert [check.name for check in gpu_check.select(checks, "tokens")] == ["tokens"]
    with pytest.raises(SystemExit, match="--only nothing: no such check; there are machine, tokens, sampling, kernels"):
        gpu_check.select(checks, "nothing")


def test_token_comparison_runs_and_can_fail() -> None:
    facts = executor_checks.compare_tokens(RecordingDevice(), TINY, [("f32", "f32", 1e-3)], num_new=2)
    assert facts["f32 with f32 pages"]["same_tokens"] == 1.0
    with pytest.raises(AssertionError, match=r"f32 with int8 pages: a logit is off by .*, limit 0"):
        executor_checks.compare_tokens(RecordingDevice(), TINY, [("f32", "int8", 0.0)], num_new=1)


def test_decode_timing_compares_with_the_bound() -> None:
    facts = executor_checks.time_decode(RecordingDevice(), TINY, (1, 2), 1e9, repeats=2, context=16, dtype="f32")
    assert [(row["cuda_graphs"], row["batch"]) for row in facts["rows"]] == [
        (True, 1),
        (True, 2),
        (False, 1),
        (False, 2),
    ]
    weights = TinyWeights(TINY).by_name
    matrices = [array for name, array in weights.items() if array.ndim == 2 and name not in ("embedding", "cos", "sin")]
    assert facts["weight_bytes"] == sum(array.nbytes for array in matrices)
    assert facts["kv_bytes_a_sequence"] == 2 * 16 * 16 * 4
    row = facts["rows"][1]
    assert row["bound_milliseconds"] == pytest.approx((facts["weight_bytes"] + 2 * 2048) / 1e9 * 1e3, abs=1e-4)
    assert row["milliseconds"] > 0 and row["tokens_per_second"] > 0


def test_attention_bandwidth_counts_bytes_and_cycles_through_blocks() -> None:
    repeats_seen: list[int] = []

    def timer(work: Callable[[], None], repeats: int) -> float:
        repeats_seen.append(repeats)
        work()
        return 1e-3

    spec = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=16, scale=0.25)
    rows = attention_speed.measure(
        RecordingDevice(), spec, (20, 64), ["f16", "int8"], num_sequences=2, timer=timer, cold_bytes=1 << 15
    )
    assert [(row["kv_precision"], row["context"]) for row in rows] == [
        ("f16", 20), ("f16", 64), ("int8", 20), ("int8", 64),
    ]  # fmt: skip
    # 2 sequences of 2 and of 4 blocks; a block is K and V of 16 slots: 32 bytes each in f16, 16 + 4 in int8.
    assert [row["bytes"] for row in rows] == [2 * 2 * 1024, 2 * 4 * 1024, 2 * 2 * 640, 2 * 4 * 640]
    assert rows[0]["bytes_per_second"] == 2 * 2 * 1024 * 1000
    assert repeats_seen == [16, 10, 26, 14]


def test_sampling_is_compared_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sampling_check.compare("cpu", 20, 500)["rows"] == 20
    monkeypatch.setattr(sampling_check.philox, "uniform", lambda *_key: 0.999)
    with pytest.raises(AssertionError, match=r"row 0 .*: token \d+, reference \d+"):
        sampling_check.compare("cpu", 20, 500)
