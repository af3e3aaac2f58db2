"""Checkpoints with scales of their own, weights and inputs: the engines' graphs hold just those, code for code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from builder.engine.conftest import CONFIG, tiny_weights
from onnx import numpy_helper
from trtbuild.engine.expand_codes import expand_codes
from trtbuild.engine.prepare import prepare_graph
from trtbuild.engine.segments import cut, load_graph
from trtbuild.engine.tables import settle_tables
from trtbuild.pipeline import import_checkpoint
from trtbuild.quantize.recipe import Recipe
from trtdecode.errors import BuildError

QKV = tuple(f"model.layers.0.self_attn.{name}_proj" for name in "qkv")


def quantised_checkpoint(folder: Path, kind: str, **changes: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tiny model with FP8 (a scale a matrix) or INT8 (a scale a row) weights; scales that absmax would not give."""
    tensors: dict[str, torch.Tensor] = {}
    random = np.random.default_rng(1)
    for name, array in tiny_weights().items():
        weight = torch.from_numpy(array)
        if array.ndim != 2 or "embed" in name:
            tensors[name] = weight
            continue
        stem = name.removesuffix(".weight")
        largest = weight.abs().amax() if kind == "float-quantized" else weight.abs().amax(1, keepdim=True)
        scale = largest.reshape(1) / 300 if kind == "float-quantized" else largest / 100
        codes = weight / scale
        tensors[name] = codes.to(torch.float8_e4m3fn) if kind == "float-quantized" else codes.round().to(torch.int8)
        tensors[f"{stem}.weight_scale"] = scale
        tensors[f"{stem}.input_scale"] = torch.tensor([random.uniform(0.01, 0.1)], dtype=torch.float32)
    tensors |= changes
    settings = {"quant_method": "compressed-tensors", "format": kind, "config_groups": {}}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": settings}))
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    return tensors


def prepared(source: Path, folder: Path, graph: str, precision: str) -> dict[str, np.ndarray]:
    """The initializers of the first segment as TensorRT gets it; no calibration."""
    version = import_checkpoint(source, folder, precisions=(graph,)).version_dir
    model = load_graph(next(version.glob("*.onnx")))
    expand_codes(model)
    recipe = Recipe(precision)
    pieces, _ = settle_tables(cut(model), recipe)
    made = prepare_graph(pieces.segments[0].model, "segment_000", recipe, {}, folder)
    assert set(made.schemes.values()) == {precision}
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(made.onnx_path).graph.initializer}


@pytest.mark.parametrize(
    ("kind", "graph", "precision"),
    [("float-quantized", "f32", "fp8"), ("int-quantized", "f32", "int8"), ("int-quantized", "int8", "int8")],
)
def test_own_scales_and_codes_reach_the_engine(kind: str, graph: str, precision: str, tmp_path: Path) -> None:
    tensors = quantised_checkpoint(tmp_path / "checkpoint", kind)
    found = prepared(tmp_path / "checkpoint", tmp_path / "model", graph, precision)
    name = "layers.0/attention/Gemm"
    codes = np.concatenate([tensors[f"{stem}.weight"].float().numpy() for stem in QKV])
    np.testing.assert_array_equal(found[f"{name}/weight"].astype(np.float32).reshape(codes.shape), codes)
    scales = np.concatenate(
        [tensors[f"{stem}.weight_scale"].expand(len(tensors[f"{stem}.weight"]), 1).numpy()[:, 0] for stem in QKV]
    )
    np.testing.assert_allclose(found[f"{name}/weight_scale"], scales, rtol=1e-6)
    assert float(found[f"{name}/input_scale"]) == max(float(tensors[f"{stem}.input_scale"]) for stem in QKV)


@pytest.mark.parametrize(
    "changes",
    [
        {f"{QKV[0]}.input_zero_point": torch.tensor([3], dtype=torch.int32)},  # asymmetric
        {f"{QKV[1]}.input_scale": None},  # one of the three has none
    ],
    ids=["asymmetric", "incomplete"],
)
def test_without_usable_scales_the_layer_is_calibrated(changes: dict[str, Any], tmp_path: Path) -> None:
    quantised_checkpoint(tmp_path / "whole", "int-quantized")
    tensors = safetensors.torch.load_file(tmp_path / "whole" / "model.safetensors") | changes
    source = tmp_path / "checkpoint"
    source.mkdir()
    (source / "config.json").write_text((tmp_path / "whole" / "config.json").read_text())
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    safetensors.torch.save_file(kept, source / "model.safetensors")
    with pytest.raises(BuildError, match=r"'layers.0/attention/Gemm' needs statistics"):
        prepared(source, tmp_path / "model", "f32", "int8")
