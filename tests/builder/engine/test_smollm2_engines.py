"""SmolLM2-135M: 31 segments within a minute on two cores, every expected fusion in all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from trtbuild.build_engines import BuildOptions, build_engines
from trtbuild.pipeline import import_checkpoint
from trtdecode.executor.engine_files import engines_problem
from trtdecode.executor.engine_steps import read_steps
from trtdecode.manifest import read_manifest

LAYERS, PROFILES = 30, 2


@pytest.mark.slow
def test_fp16(smollm2_gguf: Path, tmp_path: Path) -> None:
    import_checkpoint(smollm2_gguf, tmp_path / "smollm2", precisions=("f32",))
    version = tmp_path / "smollm2" / "1"
    report = build_engines(version, "fp16", 89, options=BuildOptions(verify=False, timing_cache_root=tmp_path))
    assert len(report.built) == LAYERS + 1
    assert report.seconds < 60
    # The tied embedding is one table beside the engines, not a constant in the last one.
    assert 240e6 < report.num_bytes < 260e6
    tables = (report.directory / "tables.safetensors").stat().st_size
    assert tables == pytest.approx(49152 * 576 * 2, rel=0.001)
    held = Counter(check.pattern for check in report.checks if check.holds)
    assert held == {
        "float_matmul": PROFILES * 4 * LAYERS,
        "residual_norm": PROFILES * 2 * LAYERS,
        "gate_up_silu": PROFILES * LAYERS,
    }
    assert read_steps(report.directory).max_tokens == 512
    manifest = read_manifest(version)
    problem = engines_problem(
        version, manifest, "fp16", 89, flavour=report.flavour, builder_version=report.builder_version
    )
    assert problem is None


@pytest.mark.slow
def test_the_files_own_q4_1_codes(smollm2_gguf: Path, tmp_path: Path) -> None:
    """Half of FP16's bytes: 4 bits a weight, and a scale and a shift in FP16 for 32 of them."""
    version = import_checkpoint(smollm2_gguf, tmp_path / "smollm2").version_dir
    report = build_engines(version, "int4", 89, options=BuildOptions(verify=False, timing_cache_root=tmp_path))
    assert Counter(report.schemes.values()) == {"int4": 4 * LAYERS, "int8_weight": 1}  # the tied head: a Q8_0 table
    held = Counter(check.pattern for check in report.checks if check.holds)
    assert held == {
        "int4_matmul": PROFILES * 4 * LAYERS,
        "int8_weight_matmul": PROFILES,
        "residual_norm": PROFILES * 2 * LAYERS,
        "gate_up_silu": PROFILES * LAYERS,
    }
    assert 120e6 < report.num_bytes < 130e6
