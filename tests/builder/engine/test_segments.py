"""Cutting: the pieces, what crosses between them, and that together they are the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from builder.engine.conftest import tiny_checkpoint
from builder.engine.graphs import Writer
from trtbuild.build_engines import BuildOptions, build_engines
from trtbuild.engine.prepare import prepare_graph
from trtbuild.engine.segments import CutGraph, cut, load_graph
from trtbuild.engine.tables import settle_tables
from trtbuild.pipeline import import_checkpoint
from trtbuild.quantize.calibrate import BLOCK_SIZE, prompt_batch
from trtbuild.quantize.recipe import Recipe
from trtbuild.quantize.segment_runner import SegmentRunner
from trtdecode.errors import BuildError, ManifestError
from trtdecode.executor.engine_steps import EngineStep, GatherStep, RowsStep, SeamStep, TensorSpec
from trtdecode.executor.torch_executor import TorchExecutor
from trtdecode.manifest import RankLayout, read_manifest, verify_files

PROMPTS = [[7, 300, 12, 99, 41], [5], list(range(20, 53))]


@pytest.fixture
def pieces(tiny_template: Path) -> CutGraph:
    return cut(load_graph(tiny_template / "decoder.onnx"))


def test_steps_of_two_layers(pieces: CutGraph) -> None:
    assert [step.kind for step in pieces.steps] == [
        "gather",
        "engine",
        "seam",
        "engine",
        "seam",
        "rows",
        "rows",
        "engine",
    ]
    gather, *_ = pieces.steps
    assert gather == GatherStep("model.embed_tokens.weight", "input_ids", "embed/Gather")
    engines = [step for step in pieces.steps if isinstance(step, EngineStep)]
    assert [(step.file, step.dimension) for step in engines] == [
        ("segment_000", "T"),
        ("segment_001", "T"),
        ("segment_002", "S"),
    ]
    assert engines[0].inputs == ("positions", "embed/Gather")
    assert engines[2].inputs[-1] == "model.embed_tokens.weight"  # the tied head reads the table
    assert engines[2].outputs == ("logits",)
    seam = next(step for step in pieces.steps if isinstance(step, SeamStep))
    assert seam.operator == "PagedAttention"
    assert seam.inputs[3:] == (
        "key_cache.0",
        "value_cache.0",
        "past_lens",
        "query_begins",
        "block_indices",
        "block_begins",
        "max_context_len",
    )
    assert seam.attributes["num_kv_heads"] == 2


@pytest.fixture(scope="module")
def split_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model over two tensor-parallel ranks of two stages."""
    root = tmp_path_factory.mktemp("split")
    checkpoint = tiny_checkpoint(root / "checkpoint")
    return import_checkpoint(checkpoint, root / "model", precisions=("f32",), ranks=RankLayout(2, 2)).version_dir


def test_a_rank_is_cut_at_its_all_reduces_too(split_version: Path) -> None:
    """A stage of one layer: attention, sum, MLP, sum; between two of them an engine."""
    pieces = cut(load_graph(split_version / "rank_0" / "decoder.onnx"))
    assert [(step.kind, getattr(step, "operator", getattr(step, "file", ""))) for step in pieces.steps] == [
        ("gather", ""),
        ("engine", "segment_000"),
        ("seam", "PagedAttention"),
        ("engine", "segment_001"),  # the output projection: a part of a sum
        ("seam", "AllReduce"),
        ("engine", "segment_002"),
        ("seam", "AllReduce"),
        ("engine", "segment_003"),  # the residual, which is what the next stage gets
    ]
    sums = [step for step in pieces.steps if isinstance(step, SeamStep) and step.operator == "AllReduce"]
    assert all(pieces.tensors[step.output] == TensorSpec("f32", ("T", 128)) for step in sums)
    assert (pieces.output, pieces.tensors["hidden_out"]) == ("hidden_out", TensorSpec("f32", ("T", 128)))
    last = cut(load_graph(split_version / "rank_3" / "decoder.onnx"))
    assert (last.output, last.tensors["logits"]) == ("logits", TensorSpec("f32", ("S", 320)))
    assert last.tensors["hidden_in"] == TensorSpec("f32", ("T", 128))
    assert [step.kind for step in last.steps].count("rows") == 2


def test_a_ranks_engines_build(split_version: Path, tmp_path: Path) -> None:
    options = BuildOptions(max_num_seqs=4, max_num_batched_tokens=32, timing_cache_root=tmp_path)
    lines: list[str] = []
    folder = split_version / "rank_2"
    report = build_engines(folder, "int8_weight", 89, options=options, report=lines.append)
    assert list(report.built) == [f"segment_00{number}" for number in range(4)]
    assert "one rank's part of a model: parity with float32 is not measured" in lines
    verify_files(folder, read_manifest(folder))
    with pytest.raises(BuildError, match=r"precision fp8 is calibrated .* build fp16, bf16, int8_weight"):
        build_engines(folder, "fp8", 89, options=options)


def test_every_value_has_one_dynamic_dimension(pieces: CutGraph) -> None:
    assert pieces.tensors["embed/Gather"] == TensorSpec("f32", ("T", 128))
    assert pieces.tensors["rotary/Cos"] == TensorSpec("f32", ("T", 1, 16))
    assert pieces.tensors["logits"] == TensorSpec("f32", ("S", 320))
    rows = [step.output for step in pieces.steps if isinstance(step, RowsStep)]
    assert all(pieces.tensors[name].shape[0] == "S" for name in rows)
    for segment in pieces.segments:
        for value in segment.model.graph.inputs:
            dynamic = [size for size in value.shape if not isinstance(size, int)]
            assert [str(size) for size in dynamic] in ([segment.dimension], [])


@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 0.03), ("int8_weight", 0.6)])
def test_the_pieces_together_are_the_graph(
    tiny_template: Path, pieces: CutGraph, tmp_path: Path, precision: str, tolerance: float
) -> None:
    """Runs what TensorRT gets on ONNX Runtime, the reference attention in between; logits lie within +-8."""
    batch = prompt_batch(PROMPTS, BLOCK_SIZE, every_row=True)
    executor = TorchExecutor(tiny_template / "decoder.onnx", kv_cache_bytes=1 << 20, block_size=BLOCK_SIZE)
    expected = executor.execute(batch).logits
    assert expected is not None
    settled, tables = settle_tables(pieces, Recipe(precision))
    arrays = {name: table.numpy() for name, table in tables.items()}
    runner = SegmentRunner([batch], BLOCK_SIZE, settled.steps, arrays, "f16")
    for segment in settled.segments:
        prepared = prepare_graph(segment.model, segment.name, Recipe(precision), {}, tmp_path)
        runner.run_segment(segment.name, prepared.onnx_path)
    assert np.abs(runner.logits()[0] - expected).max() < tolerance


def test_a_tied_int8_table_lies_as_the_head_wants_it(pieces: CutGraph) -> None:
    settled, tables = settle_tables(pieces, Recipe("int8_weight"))
    name = "model.embed_tokens.weight"
    assert settled.steps[0] == GatherStep(name, "input_ids", "embed/Gather", axis=1, scales=f"{name}.scales")
    assert settled.tensors[name] == TensorSpec("i8", (128, 320))
    assert settled.tensors[f"{name}.scales"] == TensorSpec("f16", (320,))
    assert tables[name].numpy().dtype == np.int8
    head = settled.segments[-1].model.graph
    table = next(value for value in head.inputs if value.name == name)
    assert (table.dtype, list(table.shape)) == (ir.DataType.INT8, [128, 320])
    (dequantize,) = [node for node in head if node.op_type == "DequantizeLinear"]
    assert dequantize.attributes["axis"].as_int() == 1


def test_a_graph_that_mixes_rows_after_the_last_seam_is_refused() -> None:
    w = Writer()
    x = w.input("x", ["T", 8])
    indices = w.input("logit_indices", ["S"], ir.DataType.INT64)
    mixed = w.op("running_sum", "CumSum", x, w.constant("axis", np.array(0)))
    rows = w.op("rows", "Gather", mixed, indices, axis=0)
    w.output(w.op("logits", "MatMul", rows, w.weight("head", 8, 16)), ["S", 16])
    with pytest.raises(BuildError, match=r"node 'running_sum' \(CumSum\) comes after the last seam and may mix rows"):
        cut(w.model())


def test_a_value_of_unknown_width_is_refused() -> None:
    w = Writer()
    x = w.input("x", ["T", "W"])
    w.output(w.op("y", "Relu", x), ["T", "W"])
    with pytest.raises(BuildError, match=r"value 'x' has shape .* only the first dimension"):
        cut(w.model())


def test_what_is_not_a_graph(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="not found; import the model again"):
        load_graph(tmp_path / "decoder.onnx")
    (tmp_path / "decoder.onnx").write_bytes(b"\xff" * 50)
    with pytest.raises(ManifestError, match="not an ONNX file"):
        load_graph(tmp_path / "decoder.onnx")
