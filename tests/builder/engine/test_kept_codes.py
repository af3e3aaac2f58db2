"""INT4 engines of checkpoints that are quantised already: their own codes, in every segment, read by the matmuls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import onnx_ir as ir
import pytest
import transformers
from builder.engine.graphs import WIDTH, Writer
from builder.gguf_writer import llama_metadata, llama_tensors, write_gguf
from builder.gptq_writer import gptq_folder
from builder.rewrite import decomposed as forms
from builder.tiny_models import LLAMA_SIZES, make_model
from trtbuild.build_engines import BuildOptions, build_engines
from trtbuild.build_onnx import OnnxOptions, build_onnx
from trtbuild.engine.expand_codes import expand_codes
from trtbuild.engine.layer_report import read_report
from trtbuild.engine.prepare import prepare_graph
from trtbuild.engine.segments import cut, load_graph
from trtbuild.engine.tables import settle_tables
from trtbuild.pipeline import import_checkpoint
from trtbuild.quantize.calibrate import BLOCK_SIZE, prompt_batch
from trtbuild.quantize.mixed import parse_mixed
from trtbuild.quantize.recipe import Recipe
from trtbuild.quantize.segment_runner import SegmentRunner
from trtdecode.errors import BuildError
from trtdecode.executor.torch_executor import TorchExecutor

Quant = gguf.GGMLQuantizationType
PROMPTS = [[7, 30, 12, 99, 41], [5], list(range(20, 53))]
LAYERS = 2

#: K-quants want 256 columns.
WIDE = {**LLAMA_SIZES, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}


def gguf_file(folder: Path, quant: Quant, exceptions: dict[str, Quant], sizes: dict[str, object]) -> Path:
    model = make_model(transformers.LlamaConfig(**sizes))
    tensors = llama_tensors(model)
    folder.mkdir()
    return write_gguf(folder / "m.gguf", llama_metadata(model.config), tensors, quant=quant, exceptions=exceptions)


def q4_k_m(folder: Path) -> Path:
    """As llama.cpp mixes a Q4_K_M file (V, down and head wider), and one Q5_K besides."""
    wider = {"attn_v.weight": Quant.Q6_K, "ffn_down.weight": Quant.Q6_K, "output.weight": Quant.Q6_K}
    return gguf_file(folder, Quant.Q4_K, {**wider, "attn_output.weight": Quant.Q5_K}, WIDE)


def mixed(folder: Path) -> Path:
    wider = {"attn_v.weight": Quant.Q5_1, "ffn_down.weight": Quant.Q8_0, "attn_output.weight": Quant.Q5_0}
    return gguf_file(folder, Quant.Q4_1, wider, LLAMA_SIZES)


#: Where the codes come from, and the schemes of all matmuls. The head of a GPTQ checkpoint is no codes of its own.
SOURCES: dict[str, tuple[Callable[[Path], Path], dict[str, int]]] = {
    "Q4_0": (lambda folder: gguf_file(folder, Quant.Q4_0, {}, LLAMA_SIZES), {"int4": 4 * LAYERS + 1}),
    "Q4_1": (lambda folder: gguf_file(folder, Quant.Q4_1, {}, LLAMA_SIZES), {"int4": 4 * LAYERS + 1}),
    "mixed": (mixed, {"int4": 3 * LAYERS + 1, "int4_pair": 3 * LAYERS}),
    "Q4_K_M": (q4_k_m, {"int4": 3 * LAYERS, "int4_pair": 3 * LAYERS + 1}),
    "gptq": (
        lambda folder: gptq_folder(folder, symmetric=False, act_order=False),
        {"int4": 4 * LAYERS, "int4_pair": 1},
    ),
    "gptq-act-order": (
        lambda folder: gptq_folder(folder, symmetric=False, act_order=True),
        {"int4": 4 * LAYERS, "int4_pair": 1},
    ),
}


@pytest.fixture(scope="module", params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A version with the checkpoint's codes alone, and the schemes wanted."""
    make, schemes = SOURCES[request.param]
    root = tmp_path_factory.mktemp(request.param)
    return import_checkpoint(make(root / "source"), root / "model", precisions=("int4",)).version_dir, schemes


def test_the_pieces_are_the_dequantised_graph(source: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    """What TensorRT gets, on ONNX Runtime, against the codes dequantised in float32; logits lie within +-5. The table
    stays in FP16 here: a looked-up one becomes INT8 with a scale a row otherwise."""
    version, schemes = source
    path = version / "decoder.int4.onnx"
    batch = prompt_batch(PROMPTS, BLOCK_SIZE, every_row=True)
    expected = TorchExecutor(path, kv_cache_bytes=1 << 20, block_size=BLOCK_SIZE).execute(batch).logits
    assert expected is not None
    recipe = Recipe("int4", mixed=parse_mixed("{embedding: fp16}", "test"))
    model = load_graph(path)
    expand_codes(model, keep=lambda user: True)
    pieces, tables = settle_tables(cut(model), recipe)
    arrays = {name: table.numpy() for name, table in tables.items()}
    runner = SegmentRunner([batch], BLOCK_SIZE, pieces.steps, arrays, "f16")
    found: Counter[str] = Counter()
    for segment in pieces.segments:
        prepared = prepare_graph(segment.model, segment.name, recipe, {}, tmp_path)
        found.update(prepared.schemes.values())
        runner.run_segment(segment.name, prepared.onnx_path)
    assert found == schemes
    errors = np.abs(runner.logits()[0] - expected)
    assert errors.max() < 0.03  # FP16 engines of the same weights lie up to 0.018 off, 0.0006 to 0.0014 in the mean
    assert errors.mean() < 0.002


def test_engines_read_the_codes(source: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    version, schemes = source
    lines: list[str] = []
    options = BuildOptions(max_num_seqs=4, max_num_batched_tokens=32, timing_cache_root=tmp_path)
    report = build_engines(version, "int4", 89, options=options, report=lines.append)
    assert Counter(report.schemes.values()) == schemes
    wanted = f"the checkpoint's own codes are kept: {schemes['int4']} matrices in INT4"
    assert [line for line in lines if line.startswith(wanted)]
    assert all(check.holds for check in report.checks if check.required)
    held = Counter(check.pattern for check in report.checks if check.pattern.startswith("int4"))
    assert held == {f"{scheme}_matmul": 2 * count for scheme, count in schemes.items()}  # two profiles
    assert report.layers_path is not None
    kernels = [kernel for segment in read_report(report.layers_path).segments for kernel in segment.kernels]
    readers = [kernel for kernel in kernels if {"Int4", "Int8"} & set(kernel.dtypes)]
    assert all(kernel.is_matmul for kernel in readers)  # nothing unfolds a weight before its matmul


def test_a_mixed_file_outranks_kept_codes(tmp_path: Path) -> None:
    source = gguf_file(tmp_path / "source", Quant.Q4_1, {}, LLAMA_SIZES)
    version = import_checkpoint(source, tmp_path / "model", precisions=("int4",)).version_dir
    recipe = Recipe("int4", mixed=parse_mixed('{"layers.1/mlp/Gemm": fp16}', "test"))
    options = BuildOptions(max_num_seqs=4, max_num_batched_tokens=32, timing_cache_root=tmp_path)
    report = build_engines(version, "int4", 89, recipe=recipe, options=options)
    assert report.schemes["layers.1/mlp/Gemm"] == "float"
    assert report.schemes["layers.0/mlp/Gemm/codes"] == "int4"
    held = {(check.pattern, check.nodes) for check in report.checks if check.holds}
    assert ("f16_island", ("layers.1/mlp/Gemm",)) in held


def test_other_codes_are_refused_by_name(tmp_path: Path) -> None:
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    codes = w.constant("codes", np.zeros((WIDTH, 64), np.uint8))
    scale, zero = w.constant("scale", np.float32(0.1)), w.constant("zero", np.uint8(3))
    weight = w.op("weight", "DequantizeLinear", codes, scale, zero)
    w.output(w.op("y", "MatMul", x, weight), ["T", 64])
    with pytest.raises(BuildError, match=r"codes: UINT8 codes, which TensorRT cannot read, .* before MatMul 'y' is no"):
        prepare_graph(w.model(), "test", Recipe("int4"), {}, tmp_path)


def test_a_model_of_ones_own_in_blocks_of_int8(tmp_path: Path) -> None:
    """An INT4 engine reads them as halves. Of other precisions, for GPUs without INT4, the report says what happens."""
    ir.save(forms.blocks(largest=127), tmp_path / "model.onnx")
    recipe = Recipe("int4", int4_method="rtn")
    report = build_onnx(tmp_path / "model.onnx", tmp_path / "int4", "int4", 89, recipe=recipe)
    assert report.schemes == {"y/codes": "int4_pair"}
    assert report.rewrites == {"unfused_blocks": 1}
    options = OnnxOptions(allow_unfused=True)
    old = build_onnx(tmp_path / "model.onnx", tmp_path / "int8", "int8_weight", 75, options=options)
    assert old.rewrites == {}
    assert [(check.pattern, check.holds) for check in old.checks] == [("int8_weight_matmul", False)]
