"""A recipe on real graphs: explicit axes (CASES C48), the same numbers as the fake-quantised reference, balancing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from builder.engine.compiled import copy_of, run
from builder.engine.graphs import WIDTH, Writer, gated_mlp, gpt_mlp
from trtbuild.quantize import int8
from trtbuild.quantize.fp8 import to_fp8
from trtbuild.quantize.linears import find_linears
from trtbuild.quantize.quantize_graph import quantize_graph
from trtbuild.quantize.recipe import Recipe
from trtbuild.quantize.statistics import InputStatistics
from trtdecode.errors import BuildError, ConfigError

ROWS = np.random.default_rng(5).standard_normal((64, WIDTH)).astype(np.float32)


def observed(model: ir.Model, rows: np.ndarray = ROWS) -> dict[str, InputStatistics]:
    """Statistics of every matmul input, from a run with those values as outputs."""
    found = {}
    for linear in find_linears(model.graph):
        name = linear.input.name
        probe = copy_of(model)
        if name != "x":
            value = next(value for node in probe.graph for value in node.outputs if value.name == name)
            probe.graph.outputs.clear()
            probe.graph.outputs.append(value)
        statistics = InputStatistics(name, linear.num_in, with_hessian=True)
        statistics.add(rows if name == "x" else run(probe, x=rows))
        found[name] = statistics
    return found


@pytest.mark.parametrize("make", [gpt_mlp, gated_mlp])
@pytest.mark.parametrize(
    ("recipe", "tolerance"),
    [
        (Recipe("int8_weight"), 0.02),
        (Recipe("int8"), 0.05),
        (Recipe("int8", smoothing=0), 0.05),
        (Recipe("int8", activation_range="percentile"), 0.1),
        (Recipe("fp8"), 0.08),
        (Recipe("int4", int4_method="rtn"), 0.25),
        (Recipe("int4", int4_method="awq"), 0.25),
        (Recipe("int4", int4_method="gptq", act_order=True), 0.25),
    ],
    ids=lambda value: f"{value.precision}-{value.int4_method}" if isinstance(value, Recipe) else "",
)
def test_every_scheme_stays_close_on_onnxruntime(make, recipe: Recipe, tolerance: float) -> None:
    model = make()
    expected = run(model, x=ROWS)
    statistics = observed(model)
    schemes = quantize_graph(model, recipe, statistics)
    assert set(schemes.values()) == {recipe.precision}
    for node in model.graph:
        if node.op_type == "DequantizeLinear" and node.inputs[0].is_initializer():
            assert "axis" in node.attributes
    result = run(model, x=ROWS)
    assert np.abs(result - expected).max() < tolerance * np.abs(expected).max()


def test_weight_only_is_the_fake_quantised_reference() -> None:
    """A square [out, in] weight whose rows differ by powers of ten: the wrong axis would show at once."""
    w = Writer()
    x = w.input("x", ["T", 4])
    weights = np.array([[1, -2, 3, 4], [10, 20, -30, 40], [100, 200, 300, -400], [1000, 2000, 3000, 4000]], np.float32)
    w.output(w.op("y", "Gemm", x, w.constant("w", weights), transB=1), ["T", 4])
    model = w.model()
    quantize_graph(model, Recipe("int8_weight"), {})
    (dequantize,) = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    assert dequantize.attributes["axis"].as_int() == 0
    reference = int8.dequantize_rows(int8.quantize_rows(weights, 4))
    rows = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(run(model, x=rows), rows @ reference.T, rtol=1e-4)


def test_a_matmul_weight_has_its_scales_on_axis_1() -> None:
    w = Writer()
    x = w.input("x", ["T", 4])
    weights = np.array([[1, 100], [2, 200], [0, 0], [0, 0]], np.float32)  # [in, out]
    w.output(w.op("y", "MatMul", x, w.constant("w", weights)), ["T", 2])
    model = w.model()
    quantize_graph(model, Recipe("int8_weight"), {})
    (dequantize,) = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    assert dequantize.attributes["axis"].as_int() == 1
    assert dequantize.inputs[1].const_value.numpy().tolist() == pytest.approx([2 / 127, 200 / 127])
    back = run(model, x=np.eye(4, dtype=np.float32))
    steps = np.array([2 / 127, 200 / 127])  # the wrong axis would be off by 50 steps in column 0
    assert (np.abs(back - weights) <= steps / 2 * 1.001).all()


def test_fp8_input_and_weight_are_the_fake_quantised_reference() -> None:
    model = gpt_mlp()
    graph = model.graph
    up = find_linears(graph)[0]
    weights, scale = up.array(), float(observed(model)["norm"].magnitude("absmax", 100)) / 448
    normalized = observed(model)["norm"].sample
    quantize_graph(model, Recipe("fp8"), observed(gpt_mlp()))
    (input_scale,) = [value for name, value in graph.initializers.items() if name == "up/input_scale"]
    assert float(input_scale.const_value.numpy()) == pytest.approx(scale)
    row_scales = np.abs(weights).max(axis=1) / 448
    fake_weights = to_fp8(weights / row_scales[:, None]).astype(np.float32) * row_scales[:, None]
    fake_inputs = to_fp8(normalized / scale).astype(np.float32) * scale
    probe = copy_of(model)
    value = next(value for node in probe.graph for value in node.outputs if value.name == "up")
    probe.graph.outputs.clear()
    probe.graph.outputs.append(value)
    bias = graph.initializers["b_up"].const_value.numpy()
    np.testing.assert_allclose(run(probe, x=ROWS)[:5], (fake_inputs @ fake_weights.T + bias)[:5], atol=2e-3)


def test_smoothing_goes_into_the_norm() -> None:
    model = gpt_mlp()
    before = model.graph.initializers["g"].const_value.numpy().copy()
    quantize_graph(model, Recipe("int8"), observed(gpt_mlp()))
    norm = next(node for node in model.graph if node.name == "norm")
    assert not np.allclose(norm.inputs[1].const_value.numpy(), before)
    assert [node.op_type for node in model.graph].count("Mul") == 1  # after GELU there is no norm to take the factors


def test_a_shared_norm_is_not_changed() -> None:
    """Another user of the norm's output must see it as it was."""
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    norm = w.op("norm", "RMSNormalization", x, w.weight("g", WIDTH), axis=-1)
    w.output(w.op("y", "Gemm", norm, w.weight("w", 64, WIDTH), transB=1), ["T", 64])
    w.output(w.op("z", "Relu", norm), ["T", WIDTH])
    model = w.model()
    statistics = observed(model)
    quantize_graph(model, Recipe("int8"), statistics)
    assert next(node for node in model.graph if node.name == "norm").inputs[1].name == "g"
    assert [node.name for node in model.graph if node.op_type == "Mul"] == ["y/input_factor"]


def test_massive_activations_keep_float_inputs() -> None:
    """One token with a huge value in one channel: with a single scale every other token would round to zero."""
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    w.output(w.op("y", "Gemm", x, w.weight("w", 64, WIDTH), transB=1), ["T", 64])
    model = w.model()
    rows = ROWS.copy()
    rows[0, 7] = 5000
    statistics = observed(model, rows)
    assert quantize_graph(copy_of(model), Recipe("int8"), statistics) == {"y": "int8_weight"}
    assert quantize_graph(copy_of(model), Recipe("fp8"), statistics) == {"y": "fp8"}  # floats have the range
    assert quantize_graph(copy_of(model), Recipe("int8", max_input_error=2), statistics) == {"y": "int8"}


def test_inputs_that_are_always_zero_stay_finite() -> None:
    model = gpt_mlp()
    statistics = observed(model, np.zeros_like(ROWS))
    statistics["norm"] = InputStatistics("norm", WIDTH)
    statistics["norm"].add(np.zeros((3, WIDTH), np.float32))
    for precision in ("int8", "fp8"):
        quantized = copy_of(gpt_mlp())
        quantize_graph(quantized, Recipe(precision), statistics)
        assert np.isfinite(run(quantized, x=np.zeros_like(ROWS))).all()


def test_layers_over_one_input_share_its_quantisation() -> None:
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    for name in ("q", "k"):
        w.output(w.op(name, "Gemm", x, w.weight(f"w_{name}", 64, WIDTH), transB=1), ["T", 64])
    model = w.model()
    quantize_graph(model, Recipe("int8"), observed(model))
    assert [node.op_type for node in model.graph].count("QuantizeLinear") == 1


def test_what_is_refused() -> None:
    with pytest.raises(BuildError, match="'up' needs statistics of 'norm'; calibrate the graph first"):
        quantize_graph(gpt_mlp(), Recipe("fp8"), {})
    model = gpt_mlp()
    weight = model.graph.initializers["w_up"]
    weight.const_value = ir.Tensor(np.full((256, WIDTH), np.nan, np.float32), name="w_up")
    with pytest.raises(BuildError, match="weight 'w_up' of 'up' is not finite; the checkpoint is damaged"):
        quantize_graph(model, Recipe("int8_weight"), {})
    with pytest.raises(ConfigError, match="int4 method 'best'; use one of rtn, awq, gptq"):
        Recipe("int4", int4_method="best")
    with pytest.raises(ConfigError, match=r"percentile 10; must be in \(50, 100\]"):
        Recipe("int8", percentile=10)


def test_statistics_over_batches() -> None:
    statistics = InputStatistics("x", 2, with_hessian=True)
    rows = np.arange(4000, dtype=np.float32).reshape(2000, 2)
    for begin in range(0, 2000, 300):
        statistics.add(rows[begin : begin + 300])
    assert statistics.num_rows == 2000
    assert statistics.channel_absmax.tolist() == [3998, 3999]
    assert statistics.sample.shape == (512, 2)
    assert 1700 < statistics.sample.mean() < 2300  # late rows are as likely as early ones
    np.testing.assert_allclose(statistics.hessian, rows.T @ rows, rtol=1e-5)
    assert statistics.magnitude("absmax", 0) == 3999
    assert statistics.magnitude("absmax", 0, np.array([2, 4], np.float32)) == 1999
    with pytest.raises(BuildError, match="'x' is not finite"):
        statistics.add(np.array([[np.nan, 0]], np.float32))
