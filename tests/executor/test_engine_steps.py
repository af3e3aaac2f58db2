"""`segments.json`: what is written is read back, and what cannot be read is said."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from trtdecode.errors import ManifestError
from trtdecode.executor.engine_steps import (
    STEPS_FILE,
    EngineFile,
    EngineStep,
    EngineSteps,
    GatherStep,
    RowsStep,
    SeamStep,
    TensorSpec,
    TokenProfile,
    read_steps,
    write_steps,
)

STEPS = EngineSteps(
    precision="fp16",
    sm=89,
    flavour="tensorrt-rtx",
    builder_version="1.7.1.116",
    source_graph="f32",
    profiles=(TokenProfile("decode", 1, 8, 64), TokenProfile("prefill", 1, 256, 512)),
    steps=(
        GatherStep("embedding", "input_ids", "hidden", axis=1, scales="embedding_scales"),
        EngineStep("segment_000-ab.engine", ("hidden",), ("q", "k", "v"), "T"),
        SeamStep("PagedAttention", "attention.0", ("q", "k", "v"), "o", {"scale": 0.125, "num_heads": 9}),
        RowsStep("o", "o_rows"),
        EngineStep("segment_001-cd.engine", ("o_rows", "embedding"), ("logits",), "S"),
    ),
    tensors={"hidden": TensorSpec("f16", ("T", 576)), "logits": TensorSpec("f32", ("S", 49152))},
    output="logits",
    engines={"segment_000-ab.engine": EngineFile("00ff", 12, {"sm": "89"})},
)


def test_round_trip(tmp_path: Path) -> None:
    write_steps(tmp_path, STEPS)
    assert read_steps(tmp_path) == STEPS
    assert sorted(path.name for path in tmp_path.iterdir()) == [STEPS_FILE]  # no partial file is left


def test_derived_facts() -> None:
    assert STEPS.max_tokens == 512
    assert STEPS.segment_files == ("segment_000-ab.engine", "segment_001-cd.engine")


@pytest.mark.parametrize(("num_tokens", "profile"), [(1, 0), (64, 0), (65, 1), (512, 1)])
def test_the_tightest_profile_is_taken(num_tokens: int, profile: int) -> None:
    assert STEPS.profile_for(num_tokens) == profile


def test_more_tokens_than_the_engines_hold_is_a_bug_not_a_silent_clamp() -> None:
    with pytest.raises(AssertionError, match="513 tokens in a batch, engines hold at most 512"):
        STEPS.profile_for(513)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="not found; build the engines again"):
        read_steps(tmp_path)
    path = tmp_path / STEPS_FILE
    path.write_text("{")
    with pytest.raises(ManifestError, match="not readable as JSON"):
        read_steps(tmp_path)
    raw = {**dataclasses.asdict(STEPS), "format_version": 7}
    path.write_text(json.dumps(raw))
    with pytest.raises(ManifestError, match="format_version 7, this trtdecode reads 1"):
        read_steps(tmp_path)
    raw["format_version"] = 1
    raw["steps"] = [{"kind": "teleport"}]
    path.write_text(json.dumps(raw))
    with pytest.raises(ManifestError, match="field missing or of the wrong form"):
        read_steps(tmp_path)
