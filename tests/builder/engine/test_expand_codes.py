"""Stored codes expanded to the floats they stand for, and engines of other precisions built from these."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import onnx_ir as ir
import pytest
import transformers
from builder.engine.conftest import tiny_checkpoint
from builder.engine.graphs import WIDTH, Writer
from builder.gguf_writer import llama_metadata, llama_tensors, write_gguf
from builder.gptq_writer import gptq_folder
from builder.tiny_models import LLAMA_SIZES, make_model
from trtbuild.build_engines import BuildOptions, build_engines
from trtbuild.checkpoint import load, open_checkpoint
from trtbuild.engine.expand_codes import expand_codes
from trtbuild.engine.segments import cut, load_graph
from trtbuild.pipeline import import_checkpoint
from trtbuild.quantize.linears import find_linears
from trtdecode.errors import BuildError
from trtdecode.executor.engine_steps import GatherStep


@pytest.fixture(scope="module")
def int8_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default import: INT8 weights only."""
    folder = tmp_path_factory.mktemp("int8")
    import_checkpoint(tiny_checkpoint(folder / "checkpoint"), folder / "model", precisions=("int8",))
    return folder / "model" / "1"


def test_expanded_weights_are_what_the_codes_stand_for(int8_version: Path) -> None:
    model = load_graph(int8_version / "decoder.int8.onnx")
    codes = model.graph.initializers["model.layers.0.mlp.down_proj.weight"].const_value.numpy()
    scales = model.graph.initializers["model.layers.0.mlp.down_proj.weight_scale"].const_value.numpy()
    assert expand_codes(model) == 1 + 4 * 2  # the tied table, and four matrices a layer
    assert {node.op_type for node in model.graph} & {"DequantizeLinear"} == set()
    linear = next(one for one in find_linears(model.graph) if one.name == "layers.0/mlp/Gemm_1")
    expected = codes.astype(np.float32) * np.repeat(scales, codes.shape[1] // scales.shape[1], axis=1)
    assert (linear.array() == expected).all()
    pieces = cut(model)
    assert [step.table for step in pieces.steps if isinstance(step, GatherStep)] == ["model.embed_tokens.weight.float"]
    assert "model.embed_tokens.weight.float" in pieces.steps[-1].inputs  # still tied


def gguf_file(path: Path, kind: str, *, tied: bool = True) -> Path:
    model = make_model(transformers.LlamaConfig(**{**LLAMA_SIZES, "tie_word_embeddings": tied}))
    return write_gguf(path, llama_metadata(model.config), llama_tensors(model), quant=gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize(
    ("kind", "graph"), [("Q4_0", "int4"), ("Q4_1", "int4"), ("Q4_1", "int8"), ("Q5_0", "int8"), ("Q5_1", "int8")]
)
def test_every_matrix_of_a_gguf_file_is_the_checkpoints(tmp_path: Path, kind: str, graph: str) -> None:
    path = gguf_file(tmp_path / "m.gguf", kind)
    version = import_checkpoint(path, tmp_path / "m", precisions=(graph,)).version_dir
    weights = open_checkpoint(path).weights
    model = load_graph(version / f"decoder.{graph}.onnx")
    assert expand_codes(model) == 1 + 4 * 2
    found = {linear.weight.name: linear.array() for linear in find_linears(model.graph)}
    down = load(weights, "model.layers.1.mlp.down_proj.weight")
    np.testing.assert_allclose(found["model.layers.1.mlp.down_proj.weight.float"], down, atol=1e-6)
    both = [load(weights, f"model.layers.1.mlp.{name}_proj.weight") for name in ("gate", "up")]
    joined = found["model.layers.1.mlp.gate_up_proj.weight.float"]
    np.testing.assert_allclose(joined, np.concatenate(both), atol=1e-6)
    table = found["model.embed_tokens.weight.float"]  # looked up and multiplied with, one stored value
    np.testing.assert_allclose(table, load(weights, "model.embed_tokens.weight"), atol=1e-5)
    assert [step.table for step in cut(model).steps if isinstance(step, GatherStep)] == [
        "model.embed_tokens.weight.float"
    ]


@pytest.mark.parametrize("graph", ["int4", "int8"])
def test_zero_points_of_gptq_are_taken_off(tmp_path: Path, graph: str) -> None:
    source = gptq_folder(tmp_path / "g", symmetric=False, act_order=False)
    version = import_checkpoint(source, tmp_path / "m", precisions=(graph,)).version_dir
    model = load_graph(version / f"decoder.{graph}.onnx")
    expand_codes(model)
    found = {linear.weight.name: linear.array() for linear in find_linears(model.graph)}
    wanted = load(open_checkpoint(source).weights, "model.layers.0.mlp.down_proj.weight")
    np.testing.assert_array_equal(found["model.layers.0.mlp.down_proj.weight.float"], wanted)


def test_what_is_kept(tmp_path: Path) -> None:
    version = import_checkpoint(gguf_file(tmp_path / "m.gguf", "Q4_1", tied=False), tmp_path / "m").version_dir
    model = load_graph(version / "decoder.int4.onnx")
    assert expand_codes(model, keep=lambda user: user.name != "layers.1/mlp/Gemm") == 1 + 1  # the table is looked up
    assert sum(node.op_type == "Sub" for node in model.graph) == 1 + 4 * 2 - 1  # the head of its own, the layers
    (linear,) = find_linears(model.graph)
    assert linear.name == "layers.1/mlp/Gemm"


def test_codes_in_an_unknown_form_are_named() -> None:
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    codes = w.constant("codes", np.zeros((WIDTH, WIDTH), np.int8))
    floats = w.op("floats", "Cast", codes, to=int(ir.DataType.FLOAT))
    w.output(w.op("y", "MatMul", x, w.op("more", "Exp", floats)), ["T", WIDTH])
    with pytest.raises(BuildError, match=r"codes: codes that node 'floats' reads in .* --precision f32`"):
        expand_codes(w.model())


def test_engines_from_int8_weights(int8_version: Path, tmp_path: Path) -> None:
    texts = ("A short text to compare with.",)
    options = BuildOptions(max_num_seqs=2, max_num_batched_tokens=8, timing_cache_root=tmp_path, evaluation_texts=texts)
    report = build_engines(int8_version, "fp16", 89, options=options)
    assert report.quality is not None
    assert report.quality.kl_divergence < 1e-4  # FP16 against the same weights in float32
    assert all(check.holds for check in report.checks if check.required)


def test_fp16_engines_from_four_bit_codes(tmp_path: Path) -> None:
    version = import_checkpoint(gguf_file(tmp_path / "m.gguf", "Q4_1"), tmp_path / "m").version_dir
    options = BuildOptions(max_num_seqs=2, max_num_batched_tokens=8, timing_cache_root=tmp_path)
    report = build_engines(version, "fp16", 89, options=options)
    assert set(report.schemes.values()) == {"float"}
    assert all(check.holds for check in report.checks if check.required)
