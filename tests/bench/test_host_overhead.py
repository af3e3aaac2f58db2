"""The host's bench on small batches: every stage takes time, and tokens that wait share responses."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "benchlib"))

import host_overhead


def test_every_stage_is_timed() -> None:
    row = host_overhead.run([4], context_len=40, steps=20, wait_ms=0.1)["4"]
    assert all(row[stage] > 0 for stage in host_overhead.STAGES)
    assert row["core"] > 0


def test_tokens_that_wait_share_responses() -> None:
    """30 streams of 0.1 ms a response or more, 5 ms a step: their share of the time is several steps."""
    rows = host_overhead.run_sending([30], context_len=20, steps=60, wait_ms=5.0)["30"]
    assert rows["0"]["tokens_a_response"] >= 1.0
    assert rows["50"]["tokens_a_response"] > 1.5
    for row in rows.values():
        assert 0 < row["delay_p50_ms"] <= row["delay_p99_ms"] <= row["delay_max_ms"]
