"""The whole build of a tiny decoder with the real TensorRT-RTX, which needs no GPU."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from pathlib import Path

import pytest
from trtbuild.build_engines import BuildOptions, BuildReport, build_engines
from trtbuild.engine.layer_report import read_report
from trtbuild.quantize import int4
from trtbuild.quantize.mixed import parse_mixed
from trtbuild.quantize.recipe import Recipe
from trtdecode.errors import BuildError, ConfigError, ManifestError, UnsupportedError
from trtdecode.executor.engine_files import engines_problem, load_engine_steps
from trtdecode.executor.engine_steps import EngineStep, TensorSpec, read_steps
from trtdecode.manifest import read_manifest, verify_files

TEXTS = tuple(f"A short text, number {number}, to calibrate with." for number in range(4))
RTX_VERSION = "1.7.1.116"


def options(cache: Path, **changes: object) -> BuildOptions:
    """Small profiles; no parity, since random weights have nothing to be on par with."""
    fields: dict[str, object] = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "verify": False}
    fields |= {"calibration_texts": TEXTS, "evaluation_texts": TEXTS}
    return BuildOptions(**{**fields, "timing_cache_root": cache, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fp8_build(tiny_template: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuildReport]:
    """FP8 engines, built once with parity; tests that write copy the folder."""
    root = tmp_path_factory.mktemp("fp8")
    version = Path(shutil.copytree(tiny_template, root / "1"))
    loose = {"fp8": {"max_kl": 1e9, "max_perplexity_ratio": 1e9}}
    return version, build_engines(version, "fp8", 89, options=options(root, verify=True, limits=loose))


@pytest.fixture
def fp8_copy(fp8_build: tuple[Path, BuildReport], tmp_path: Path) -> Path:
    return Path(shutil.copytree(fp8_build[0], tmp_path / "1"))


def test_what_a_build_leaves(fp8_build: tuple[Path, BuildReport]) -> None:
    version, report = fp8_build
    assert report.built == dict.fromkeys(("segment_000", "segment_001", "segment_002"), "not built yet")
    assert (report.flavour, report.builder_version) == ("tensorrt-rtx", RTX_VERSION)
    assert report.directory == version / "engines" / "sm89-fp8"
    steps = read_steps(report.directory)
    manifest = read_manifest(version)
    (engine_set,) = manifest.engines
    assert engine_set.segments == steps.segment_files
    assert len(engine_set.segments) == 3
    assert engine_set.timing_cache_key == f"tensorrt-rtx-{RTX_VERSION}-sm89"
    verify_files(version, manifest)
    present = {path.name for path in report.directory.iterdir()} - {".build.lock"}
    assert present == {*steps.segment_files, "segments.json", "tables.safetensors"}
    assert steps.max_tokens == 32
    assert steps.tensors["embed/Gather"] == TensorSpec("f16", ("T", 128))
    assert steps.tensors["logits"] == TensorSpec("f32", ("S", 320))


def test_the_fusions_of_an_fp8_decoder(fp8_build: tuple[Path, BuildReport]) -> None:
    _, report = fp8_build
    counted = {(check.pattern, check.holds) for check in report.checks}
    assert counted == {
        ("fp8_matmul", True),
        ("int8_weight_matmul", True),  # the head over the tied INT8 embedding
        ("norm_quantize", True),
        ("residual_norm", True),
        ("gate_up_silu", True),
        ("gate_up_silu_in_matmul", False),
    }
    assert {check.profile for check in report.checks} == {0, 1}
    assert report.layers_path is not None
    layers = read_report(report.layers_path)
    assert [segment.segment for segment in layers.segments] == ["segment_000", "segment_001", "segment_002"]
    middle = layers.segments[1]
    (norm,) = [kernel for kernel in middle.profile(0) if "layers.0/mlp/RMSNormalization" in kernel.onnx_nodes]
    # The matmul's scaling, the residual add, the norm and the next matmul's quantisation: one kernel.
    assert {"layers.0/attention/Add", "layers.0/mlp/Gemm/input_quantize"} <= set(norm.onnx_nodes)
    assert norm.outputs[-1].dtype == "FP8" or "FP8" in {tensor.dtype for tensor in norm.outputs}
    head = layers.segments[2].profile(0)
    assert any(kernel.is_matmul and "Int8" in kernel.dtypes for kernel in head)  # the tied INT8 embedding


def test_parity_is_measured_and_recorded(fp8_build: tuple[Path, BuildReport]) -> None:
    version, report = fp8_build
    assert report.quality is not None
    assert report.quality.num_rows == sum(map(len, TEXTS))  # a token a byte
    assert 0 < report.quality.kl_divergence < 1
    (entry,) = json.loads((version / "reports" / "parity.json").read_text())
    assert (entry["reference"], entry["candidate"]) == ("f32", "fp8 engines")
    assert entry["perplexity_ratio"] == pytest.approx(1, abs=0.2)


def test_a_second_build_reuses_everything(fp8_copy: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (fp8_copy / "engines").rglob("*.engine")}
    report = build_engines(fp8_copy, "fp8", 89, options=options(tmp_path))
    assert report.built == {}
    assert report.reused == ["segment_000", "segment_001", "segment_002"]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_one_damaged_engine_is_built_again_alone(fp8_copy: Path, tmp_path: Path) -> None:
    steps = read_steps(fp8_copy / "engines" / "sm89-fp8")
    (fp8_copy / "engines" / "sm89-fp8" / steps.segment_files[1]).write_bytes(b"")
    problem = engines_problem(
        fp8_copy, read_manifest(fp8_copy), "fp8", 89, flavour="tensorrt-rtx", builder_version=RTX_VERSION
    )
    assert problem == f"{steps.segment_files[1]}: file is empty (0 bytes)"
    report = build_engines(fp8_copy, "fp8", 89, options=options(tmp_path))
    assert report.built == {"segment_001": "file is empty (0 bytes)"}
    verify_files(fp8_copy, read_manifest(fp8_copy))


def test_the_loader_names_both_sides_or_builds(tiny_version: Path) -> None:
    def load(build_missing: bool, sm: int = 89) -> list[str]:
        lines: list[str] = []
        load_engine_steps(
            tiny_version,
            read_manifest(tiny_version),
            "fp16",
            sm,
            flavour="tensorrt-rtx",
            builder_version=RTX_VERSION,
            build_missing=build_missing,
            report=lines.append,
        )
        return lines

    with pytest.raises(ManifestError, match=r"not found; build with `trtdecode build .* --precision fp16 --sm 89"):
        load(build_missing=False)
    lines = load(build_missing=True)
    assert "building" in lines[0]
    assert len(lines) == 1 + 3 + 0  # the reason, then a line for each engine
    assert load(build_missing=False) == []
    with pytest.raises(ManifestError, match="not found"):
        load(build_missing=False, sm=80)
    with pytest.raises(ManifestError, match="built for 512 tokens a step, max_num_batched_tokens is 513"):
        load_engine_steps(
            tiny_version,
            read_manifest(tiny_version),
            "fp16",
            89,
            flavour="tensorrt-rtx",
            builder_version=RTX_VERSION,
            max_num_batched_tokens=513,
        )
    with pytest.raises(ManifestError, match=r"builder_version is 1\.7\.1\.116, now 1\.8\.0"):
        load_engine_steps(
            tiny_version, read_manifest(tiny_version), "fp16", 89, flavour="tensorrt-rtx", builder_version="1.8.0"
        )


def test_a_graph_that_is_gone_is_a_reason(fp8_copy: Path) -> None:
    manifest = dataclasses.replace(read_manifest(fp8_copy), graphs={"int8": "decoder.int8.onnx"})
    problem = engines_problem(fp8_copy, manifest, "fp8", 89, flavour="tensorrt-rtx", builder_version=RTX_VERSION)
    assert problem == "built from graph 'f32', which this version no longer has"


def test_two_builders_at_once_build_once(tiny_version: Path, tmp_path: Path) -> None:
    reports: list[BuildReport] = []

    def build() -> None:
        reports.append(build_engines(tiny_version, "fp16", 86, options=options(tmp_path)))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert sorted(len(report.built) for report in reports) == [0, 3]


def test_refusals_come_before_any_work(tiny_version: Path) -> None:
    with pytest.raises(UnsupportedError, match="fp8 engines need SM >= 89"):
        build_engines(tiny_version, "fp8", 80)
    with pytest.raises(UnsupportedError, match="SM 90 is not a target of tensorrt-rtx"):
        build_engines(tiny_version, "fp16", 90, flavour="tensorrt-rtx")
    with pytest.raises(ConfigError, match="max_num_batched_tokens: 8 is less than max_num_seqs 64"):
        build_engines(tiny_version, "fp16", 89, options=BuildOptions(max_num_batched_tokens=8))
    assert not (tiny_version / "engines").exists()


def test_parity_beyond_its_limit_publishes_nothing(tiny_version: Path, tmp_path: Path) -> None:
    strict = {"int4": {"max_kl": 1e-6, "max_perplexity_ratio": 2.0}}
    with pytest.raises(BuildError, match=r"int4: KL divergence .* is over the limit 1e-06; use a wider precision"):
        build_engines(
            tiny_version,
            "int4",
            89,
            recipe=Recipe("int4", int4_method="rtn"),
            options=options(tmp_path, verify=True, limits=strict),
        )
    assert read_manifest(tiny_version).engines == ()
    assert not (tiny_version / "engines" / "sm89-int4" / "segments.json").exists()


def test_islands_of_a_mixed_build_are_honoured(tiny_version: Path, tmp_path: Path) -> None:
    """{norm: fp32, one layer: fp16, embedding: fp16} in an INT8 build, each checked on the compiled kernels."""
    mixed = parse_mixed('{norm: fp32, "layers.1/mlp/*": fp16, embedding: fp16}', "test")
    report = build_engines(tiny_version, "int8", 89, recipe=Recipe("int8", mixed=mixed), options=options(tmp_path))
    held = {(check.pattern, check.nodes[-1]) for check in report.checks if check.holds}
    assert ("f32_island", "layers.0/mlp/RMSNormalization") in held
    assert ("f16_island", "layers.1/mlp/Gemm") in held
    assert report.schemes["layers.0/mlp/Gemm"] == "int8"
    assert report.schemes["layers.1/mlp/Gemm"] == "float"
    assert all(check.holds for check in report.checks if check.required)
    steps = read_steps(report.directory)
    assert steps.tensors["model.embed_tokens.weight"] == TensorSpec("f16", (320, 128))
    assert [step.dimension for step in steps.steps if isinstance(step, EngineStep)] == ["T", "T", "S"]


def test_a_fusion_that_is_lost_fails_the_build(
    tiny_version: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One INT4 group over all input channels: the compiler then dequantises in a kernel before the matmul."""
    monkeypatch.setattr(int4, "group_size_for", lambda num_columns: num_columns)
    recipe = Recipe("int4", int4_method="rtn")
    with pytest.raises(BuildError) as caught:
        build_engines(tiny_version, "int4", 89, recipe=recipe, options=options(tmp_path))
    text = str(caught.value)
    assert text.startswith("segment_000: int4_matmul is not fused (profile 0): layers.0/attention/Gemm became ")
    assert "build with --allow-unfused" in text
    assert read_manifest(tiny_version).engines == ()
    report = build_engines(tiny_version, "int4", 89, recipe=recipe, options=options(tmp_path, allow_unfused=True))
    assert {check.pattern for check in report.checks if check.required and not check.holds} == {"int4_matmul"}
