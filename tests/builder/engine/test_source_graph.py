"""Which graph engines come from, and INT8 codes expanded to the floats they stand for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gguf
import numpy as np
import pytest
import transformers
from builder.engine.conftest import tiny_checkpoint
from builder.gguf_writer import llama_metadata, llama_tensors, write_gguf
from builder.tiny_models import LLAMA_SIZES, make_model
from trtbuild.build_engines import BuildOptions, build_engines
from trtbuild.engine.segments import cut, load_graph
from trtbuild.engine.source_graph import expand_int8, reference_name, refuse_float_zero_points, source_name
from trtbuild.pipeline import import_checkpoint
from trtbuild.quantize.linears import find_linears
from trtdecode.errors import BuildError, ManifestError
from trtdecode.executor.engine_steps import GatherStep
from trtdecode.manifest import Manifest, read_manifest


@pytest.fixture(scope="module")
def int8_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default import: INT8 weights only."""
    folder = tmp_path_factory.mktemp("int8")
    import_checkpoint(tiny_checkpoint(folder / "checkpoint"), folder / "model", precisions=("int8",))
    return folder / "model" / "1"


@pytest.mark.parametrize(
    ("graphs", "precision", "source", "reference"),
    [
        (("f32", "int8"), "fp8", "f32", "f32"),
        (("int8",), "fp8", "int8", "int8"),
        (("int4", "f32"), "int4", "int4", "f32"),
        (("int4", "int8"), "int4", "int4", "int4"),
        (("int4", "int8"), "fp16", "int8", "int8"),
    ],
)
def test_choice(int8_version: Path, graphs: tuple[str, ...], precision: str, source: str, reference: str) -> None:
    manifest = with_graphs(int8_version, *graphs)
    assert source_name(manifest, precision) == source
    assert reference_name(manifest, source) == reference


def with_graphs(version: Path, *graphs: str) -> Manifest:
    return dataclasses.replace(read_manifest(version), graphs={name: f"decoder.{name}.onnx" for name in graphs})


def test_nothing_to_build_from(int8_version: Path) -> None:
    with pytest.raises(ManifestError, match=r"no graph to build fp8 engines from \(present: int4\)"):
        source_name(with_graphs(int8_version, "int4"), "fp8")


def test_expanded_weights_are_what_the_codes_stand_for(int8_version: Path) -> None:
    model = load_graph(int8_version / "decoder.int8.onnx")
    codes = model.graph.initializers["model.layers.0.mlp.down_proj.weight"].const_value.numpy()
    scales = model.graph.initializers["model.layers.0.mlp.down_proj.weight_scale"].const_value.numpy()
    assert expand_int8(model) == 1 + 4 * 2  # the tied table, and four matrices a layer
    assert {node.op_type for node in model.graph} & {"DequantizeLinear"} == set()
    linear = next(one for one in find_linears(model.graph) if one.name == "layers.0/mlp/Gemm_1")
    expected = codes.astype(np.float32) * np.repeat(scales, codes.shape[1] // scales.shape[1], axis=1)
    assert (linear.array() == expected).all()
    pieces = cut(model)
    assert [step.table for step in pieces.steps if isinstance(step, GatherStep)] == ["model.embed_tokens.weight.float"]
    assert "model.embed_tokens.weight.float" in pieces.steps[-1].inputs  # still tied


def test_engines_from_int8_weights(int8_version: Path, tmp_path: Path) -> None:
    texts = ("A short text to compare with.",)
    options = BuildOptions(max_num_seqs=2, max_num_batched_tokens=8, timing_cache_root=tmp_path, evaluation_texts=texts)
    report = build_engines(int8_version, "fp16", 89, options=options)
    assert report.quality is not None
    assert report.quality.kl_divergence < 1e-4  # FP16 against the same weights in float32
    assert all(check.holds for check in report.checks if check.required)


@pytest.mark.parametrize(("kind", "refused"), [("Q4_1", True), ("Q4_0", False)])
@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_codes_with_float_zero_points_are_refused(tmp_path: Path, kind: str, refused: bool, precision: str) -> None:
    model = make_model(transformers.LlamaConfig(**LLAMA_SIZES))
    quant = gguf.GGMLQuantizationType[kind]
    path = write_gguf(tmp_path / "m.gguf", llama_metadata(model.config), llama_tensors(model), quant=quant)
    version_dir = import_checkpoint(path, tmp_path / "m", precisions=(precision,)).version_dir
    graph = load_graph(version_dir / f"decoder.{precision}.onnx")
    if refused:
        with pytest.raises(BuildError, match=r"qkv_proj\.weight: .* `trtdecode import --precision f32`"):
            refuse_float_zero_points(graph)
    else:
        refuse_float_zero_points(graph)
