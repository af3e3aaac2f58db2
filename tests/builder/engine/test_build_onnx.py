"""`build_onnx` on anybody's models: a projector, exporter forms, bad input, and the MiniLM encoder."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builder.engine.graphs import WIDTH, Writer, projector
from builder.rewrite import decomposed
from trtbuild.build_engines import build_engines
from trtbuild.build_onnx import OnnxOptions, build_onnx
from trtbuild.checkpoint import open_checkpoint
from trtbuild.engine.layer_report import read_report
from trtbuild.engine.open_onnx import open_onnx
from trtbuild.graph.author import author_graph
from trtbuild.pipeline import import_checkpoint
from trtbuild.quantize.calibrate_onnx import read_samples
from trtbuild.quantize.mixed import parse_mixed
from trtbuild.quantize.recipe import Recipe
from trtdecode.errors import BuildError, ConfigError, ManifestError, UnsupportedError

SAMPLES = tuple({"x": np.random.default_rng(seed).standard_normal((6, WIDTH)).astype(np.float32)} for seed in range(3))


def saved(model: ir.Model, path: Path, external: bool = False) -> Path:
    ir.save(model, path, external_data=f"{path.stem}.data" if external else None)
    return path


def test_a_projector_with_external_data(tmp_path: Path) -> None:
    """LayerNorm followed by GELU is one kernel, whatever the linear layer behind them is quantised to."""
    path = saved(projector(), tmp_path / "projector.onnx", external=True)
    report = build_onnx(path, tmp_path / "fp8", "fp8", 89, options=OnnxOptions(samples=SAMPLES))
    assert report.engine_path.stat().st_size == report.num_bytes
    assert report.schemes == {"out": "fp8"}
    assert {(check.pattern, check.holds) for check in report.checks} == {("layernorm_gelu", True), ("fp8_matmul", True)}
    assert 0 < report.errors["out"] < 0.06
    (segment,) = read_report(report.layers_path).segments
    (kernel,) = [kernel for kernel in segment.kernels if "norm" in kernel.onnx_nodes]
    assert {"norm", "gelu", "out/input_quantize"} <= set(kernel.onnx_nodes)  # quantised in the same kernel, too
    again = build_onnx(path, tmp_path / "fp8", "fp8", 89, options=OnnxOptions(samples=SAMPLES))
    assert (again.reason, again.engine_path) == ("", report.engine_path)
    data = path.with_suffix(".data")
    content = bytearray(data.read_bytes())
    content[100] ^= 1  # one bit of a weight, same size
    data.write_bytes(content)
    changed = build_onnx(path, tmp_path / "fp8", "fp8", 89, options=OnnxOptions(samples=SAMPLES))
    assert changed.reason.startswith("graph is ")
    assert not report.engine_path.exists()


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "int8_weight"])
def test_precisions(precision: str, tmp_path: Path) -> None:
    path = saved(projector(), tmp_path / "projector.onnx")
    report = build_onnx(path, tmp_path / "out", precision, 89, options=OnnxOptions(samples=SAMPLES))
    assert all(check.holds for check in report.checks if check.required)
    assert report.errors == {} if precision == "bf16" else report.errors["out"] < 0.03
    engine = onnx.load(path)
    assert [value.type.tensor_type.elem_type for value in engine.graph.input] == [onnx.TensorProto.FLOAT]


def test_an_old_export_is_raised_and_rewritten(tmp_path: Path) -> None:
    """Opset 17, LayerNorm and GELU written out: what exporters of two years ago leave."""
    model = decomposed.layer_norm()
    proto = ir.to_proto(model)
    del proto.opset_import[:]
    proto.opset_import.append(onnx.helper.make_opsetid("", 17))
    for node in proto.graph.node:  # axes were attributes
        if node.op_type == "ReduceMean":
            del node.input[1:]
            node.attribute.append(onnx.helper.make_attribute("axes", [-1]))
    onnx.checker.check_model(proto)
    path = tmp_path / "old.onnx"
    onnx.save(proto, path)
    report = build_onnx(path, tmp_path / "out", "fp16", 89, options=OnnxOptions(samples=SAMPLES))
    assert report.rewrites == {"layer_norm": 1}
    assert report.errors["y"] < 0.002


def test_islands_of_a_mixed_build(tmp_path: Path) -> None:
    """The form of the issue, on a classifier head: {encoder: fp16, attention_softmax: fp32}."""
    path = saved(decomposed.linear_softmax(), tmp_path / "head.onnx")
    recipe = Recipe("int8", mixed=parse_mixed("{encoder: fp16, attention_softmax: fp32}", "test"))
    report = build_onnx(path, tmp_path / "out", "int8", 89, recipe=recipe, options=OnnxOptions(samples=SAMPLES))
    assert report.rewrites == {"softmax": 1}
    assert report.schemes == {"head": "float"}
    held = {(check.pattern, check.holds) for check in report.checks}
    assert {("f16_island", True), ("f32_island", True), ("fused_linear_softmax", False)} <= held
    (segment,) = read_report(report.layers_path).segments
    (softmax,) = [kernel for kernel in segment.kernels if "y" in kernel.onnx_nodes]
    assert softmax.outputs[0].dtype == "Float"


def trained_with_quantisation() -> ir.Model:
    """A linear layer as quantisation-aware training exports it: Q/DQ on the input, DQ on an INT8 weight."""
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    scale, zero = w.constant("x_scale", np.float32(0.0371)), w.constant("x_zero", np.int8(0))
    quantized = w.op("x_quantize", "QuantizeLinear", x, scale, zero)
    h = w.op("x_dequantize", "DequantizeLinear", quantized, scale, zero)
    random = np.random.default_rng(2)
    codes = w.constant("codes", random.integers(-127, 128, (WIDTH, 64)).astype(np.int8))
    scales = w.constant("scales", random.uniform(1e-3, 2e-3, 64).astype(np.float32))
    weight = w.op("weight", "DequantizeLinear", codes, scales, axis=1)
    w.output(w.op("y", "MatMul", h, weight), ["T", 64])
    return w.model()


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_scales_of_quantisation_aware_training_are_kept(precision: str, tmp_path: Path) -> None:
    path = saved(trained_with_quantisation(), tmp_path / "trained.onnx")
    report = build_onnx(path, tmp_path / "out", precision, 89, options=OnnxOptions(samples=SAMPLES))
    assert report.schemes == {"y": "int8"}
    assert ("int8_matmul", True) in {(check.pattern, check.holds) for check in report.checks}
    assert report.errors["y"] < 3e-3  # against the trained graph itself, whose input is FP16 here


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="not found"):
        build_onnx(tmp_path / "none.onnx", tmp_path / "out", "fp16", 89)
    w = Writer()
    x = w.input("x", ["T", 8])
    node = ir.node("FlashThing", [x], domain="acme", name="blocks.0/flash")
    node.outputs[0].name = "flash"
    w.graph.append(node)
    w.output(w.op("y", "Relu", node.outputs[0]), ["T", 8])
    path = saved(ir.Model(w.graph, ir_version=11), tmp_path / "custom.onnx")
    with pytest.raises(UnsupportedError, match=r"not ONNX's own operators: acme::FlashThing \(blocks\.0/flash\)"):
        build_onnx(path, tmp_path / "out", "fp16", 89)
    path = saved(projector(), tmp_path / "projector.onnx")
    with pytest.raises(ConfigError, match=r"--dim batch: the graph has no such dimension \(it has T\)"):
        build_onnx(path, tmp_path / "out", "fp16", 89, options=OnnxOptions(dimensions={"batch": (1, 2, 3)}))
    with pytest.raises(ConfigError, match="--dim T: 4:2:8; must be rising from 1 or more"):
        build_onnx(path, tmp_path / "out", "fp16", 89, options=OnnxOptions(dimensions={"T": (4, 2, 8)}))
    with pytest.raises(BuildError, match=r"calibration needs samples: give \.npz files"):
        build_onnx(path, tmp_path / "out", "fp8", 89)
    with pytest.raises(BuildError, match=r"sample 0: lacks input 'x' \(has z\)"):
        build_onnx(path, tmp_path / "out", "fp8", 89, options=OnnxOptions(samples=({"z": SAMPLES[0]["x"]},)))


def test_an_operator_that_tensorrt_lacks_is_named_with_its_node(tmp_path: Path) -> None:
    w = Writer()
    x = w.input("x", ["T", 8])
    w.output(w.op("blocks.3/det", "Det", w.op("square", "Reshape", x, w.constant("s", np.array([-1, 2, 4, 1])))), ["T"])
    path = saved(ir.Model(w.graph, ir_version=11), tmp_path / "det.onnx")
    with pytest.raises(UnsupportedError, match=r"TensorRT's parser refuses Det \(node blocks\.3/det\)"):
        build_onnx(path, tmp_path / "out", "fp16", 89)


def test_samples_from_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **SAMPLES[0])
    (sample,) = read_samples([tmp_path / "a.npz"])
    assert (sample["x"] == SAMPLES[0]["x"]).all()
    (tmp_path / "b.npz").write_bytes(b"no")
    with pytest.raises(ConfigError, match=r"b\.npz: not readable as a \.npz"):
        read_samples([tmp_path / "b.npz"])


def text_batch(lengths: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    """An encoder step of texts of these lengths (executor/encoder_base.py), with seeded ids."""
    longest = max(lengths)
    pad, mask = np.zeros((len(lengths), longest), np.int64), np.zeros((len(lengths), longest), np.float32)
    begins = np.cumsum([0, *lengths])
    for row, (begin, end) in enumerate(itertools.pairwise(begins)):
        pad[row, : end - begin] = np.arange(begin, end)
        mask[row, : end - begin] = 1
    return {
        "input_ids": np.random.default_rng(seed).integers(1000, 30000, begins[-1]),
        "positions": np.concatenate([np.arange(length) for length in lengths]),
        "token_types": np.zeros(begins[-1], np.int64),
        "query_begins": begins.astype(np.int32),
        "pad_indices": pad,
        "unpad_indices": np.flatnonzero(mask.reshape(-1)),
        "pad_mask": mask,
    }


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> Path:
    """all-MiniLM-L6-v2, authored by our graph builder."""
    path = tmp_path_factory.mktemp("minilm") / "encoder.onnx"
    author_graph(open_checkpoint(minilm_folder), path, "f32")
    return path


def test_a_version_of_an_encoder_names_the_way(minilm_folder: Path, tmp_path: Path) -> None:
    version = import_checkpoint(minilm_folder, tmp_path / "minilm").version_dir
    with pytest.raises(ConfigError, match=rf"task embed; .* `trtdecode build --onnx {version}/encoder.onnx`"):
        build_engines(version, "fp16", 89)


@pytest.mark.parametrize(("precision", "error", "gelu_in_matmul"), [("fp16", 0.005, True), ("fp8", 0.15, False)])
def test_minilm(minilm: Path, tmp_path: Path, precision: str, error: float, gelu_in_matmul: bool) -> None:
    options = OnnxOptions(
        dimensions={"T": (1, 32, 128), "B": (1, 4, 8), "L": (1, 16, 32), "B_plus_1": (2, 5, 9)},
        samples=tuple(text_batch((5 + seed, 9), seed) for seed in range(4)),
    )
    report = build_onnx(minilm, tmp_path, precision, 89, options=options)
    assert report.errors["embedding"] < error
    counts: dict[tuple[str, bool], int] = {}
    for check in report.checks:
        counts[check.pattern, check.holds] = counts.get((check.pattern, check.holds), 0) + 1
    assert counts["matmul_bias_gelu", gelu_in_matmul] == 6
    assert counts["residual_norm", True] == 13
    assert counts["float_matmul" if precision == "fp16" else "fp8_matmul", True] == 24


def test_open_names_every_node(tmp_path: Path) -> None:
    proto = ir.to_proto(projector())
    for node in proto.graph.node:
        node.name = ""
    onnx.save(proto, tmp_path / "anonymous.onnx")
    names = [node.name for node in open_onnx(tmp_path / "anonymous.onnx").graph]
    assert len(set(names)) == len(names) == 3
    assert all(names)
