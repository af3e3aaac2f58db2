"""`trtdecode build` and `layers` on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from builder.engine.graphs import WIDTH, projector
from trtdecode.cli import main


def test_an_onnx_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "projector.onnx"
    ir.save(projector(), path)
    np.savez(tmp_path / "sample.npz", x=np.random.default_rng(0).standard_normal((4, WIDTH)).astype(np.float32))
    arguments = ["build", "--onnx", str(path), "--precision", "int8", "--sm", "89", "--dim", "T=1:4:16"]
    assert main([*arguments, "--samples", str(tmp_path / "sample.npz")]) == 0
    printed = capsys.readouterr().out
    assert "built (not built yet)" in printed
    assert "from float32 over the samples" in printed
    folder = tmp_path / "projector-engine"
    assert main(["layers", str(folder / "layers.json"), "--device", "L4"]) == 0
    printed = capsys.readouterr().out
    assert "layernorm_gelu: 1 of 1 (required)" in printed
    assert "profile default at 4 tokens on L4" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--precision", "fp8", "--sm", "80"], "VERSION: missing; give a version folder, or a model with --onnx FILE"),
        (
            ["--onnx", "m.onnx", "--precision", "fp8", "--sm", "80", "--dim", "T=3"],
            "--dim 'T=3': must be NAME=MIN:OPT:MAX",
        ),
        (["--onnx", "m.onnx", "--precision", "fp8", "--sm", "86"], "fp8 engines need SM >= 89"),
    ],
)
def test_refusals(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", *arguments]) == 1
    assert message in capsys.readouterr().err
