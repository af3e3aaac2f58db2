"""A layer report as text, and the difference of two."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from trtbuild.engine.layer_report import Kernel, KernelTensor, LayerReport, SegmentLayers, write_report
from trtbuild.engine.layer_table import diff_lines, table_lines
from trtdecode.cli import main


def kernel(node: str, *, kind: str = "gemm", dtype: str = "Half", profile: int = 0) -> Kernel:
    tensor = KernelTensor("t", dtype, (-1, 8))
    return Kernel(f"__mye{node}", kind, profile, (tensor,), (), (tensor,), (node,))


def segment(number: int, *kernels: Kernel) -> SegmentLayers:
    operators = {node: "Gemm" for one in kernels for node in one.onnx_nodes}
    return SegmentLayers(f"segment_{number:03d}", kernels, operators)


@pytest.fixture
def report() -> LayerReport:
    """Three layers; the last also writes the logits. One kernel runs on the host and is not shown."""
    layers = [kernel(f"layers.{number}/mlp/Gemm") for number in range(3)]
    host = kernel("layers.1/shape", kind="shape_call")
    return LayerReport(
        "fp16",
        89,
        "tensorrt-rtx",
        "1.7",
        (("decode", 8),),
        (segment(0, layers[0]), segment(1, layers[1], host), segment(2, layers[2], kernel("head/Gemm", dtype="Float"))),
    )


def test_equal_segments_are_shown_once(report: LayerReport) -> None:
    lines = [" ".join(line.split()) for line in table_lines(report)]
    assert lines == [
        "fp16 for SM 89, tensorrt-rtx 1.7, 3 engines",
        "",
        "profile decode (optimised for 8 tokens)",
        "segment_000 to segment_001 (2 alike): 1 kernels",
        "gemm Gemm Half -> Half mlp/Gemm",
        "segment_002: 2 kernels",
        "gemm Gemm Half -> Half mlp/Gemm",
        "gemm Gemm Float -> Float head/Gemm",
    ]


def test_diff_counts_equal_kernels(report: LayerReport) -> None:
    changed = dataclasses.replace(
        report,
        precision="fp8",
        segments=(segment(0, kernel("layers.0/mlp/Gemm", dtype="FP8")), *report.segments[1:]),
    )
    assert list(diff_lines(report, report)) == []
    assert [" ".join(line.split()) for line in diff_lines(report, changed)] == [
        "profile decode: 4 -> 4 kernels",
        "- 1 x gemm Gemm Half -> Half mlp/Gemm",
        "+ 1 x gemm Gemm FP8 -> FP8 mlp/Gemm",
    ]


def test_names_that_the_compiler_makes_up_do_not_differ(report: LayerReport) -> None:
    renamed = [dataclasses.replace(one, name="other", tactic="x") for one in report.segments[0].kernels]
    other = dataclasses.replace(report, segments=(segment(0, *renamed), *report.segments[1:]))
    assert list(diff_lines(report, other)) == []


def test_command(report: LayerReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "reports" / "layers-sm89-fp16.json"
    write_report(path, report)
    assert main(["layers", str(tmp_path)]) == 0
    assert "segment_000 to segment_001 (2 alike): 1 kernels" in capsys.readouterr().out
    assert main(["layers", str(tmp_path), "--diff", str(path)]) == 0
    assert capsys.readouterr().out == "the same kernels\n"
    write_report(tmp_path / "other.json", dataclasses.replace(report, segments=report.segments[:1]))
    assert main(["layers", str(path), "--diff", str(tmp_path / "other.json")]) == 1
    assert "profile decode: 4 -> 1 kernels" in capsys.readouterr().out


def test_command_without_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers", str(tmp_path)]) == 1
    assert "has no layer report; `trtdecode build` writes one" in capsys.readouterr().err
