"""`trtdecode build` and `layers` on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from builder.engine.conftest import tiny_checkpoint
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


def test_a_model_over_two_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Split at import; then one command builds every rank's engines."""
    source = tiny_checkpoint(tmp_path / "checkpoint")
    options = ["--repository", str(tmp_path), "--name", "tiny", "--precision", "f32"]
    assert main(["import", str(source), *options, "--tensor-parallel-size", "2"]) == 0
    assert "split over 2 ranks: tensor_parallel_size 2, pipeline_parallel_size 1" in capsys.readouterr().out
    version = tmp_path / "tiny" / "1"
    assert main(["build", str(version), "--precision", "fp16", "--sm", "89", "--max-num-seqs", "4"]) == 0
    printed = capsys.readouterr().out
    for rank in range(2):
        # Two layers: a cut at each attention and each of the two sums, and the pieces between them.
        assert f"{version}/rank_{rank}/engines/sm89-fp16: 7 engines built" in printed
    assert main(["import", str(source), *options, "--tensor-parallel-size", "3"]) == 1
    assert "the model's 4 attention heads do not divide by it; use one of 1, 2, 4" in capsys.readouterr().err


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
