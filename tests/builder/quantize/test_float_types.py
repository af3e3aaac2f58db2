"""Typing a float32 graph: FP16 or BF16 everywhere but on islands, and nothing left to chance."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from builder.engine.compiled import run
from builder.engine.graphs import WIDTH, Writer, gpt_mlp
from trtbuild.quantize.float_types import cast_floats, drop_unused_weights, position_only_nodes
from trtbuild.quantize.quantize_graph import quantize_graph
from trtbuild.quantize.recipe import Recipe
from trtdecode.errors import BuildError

HALF, FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT


def rotary() -> ir.Model:
    """cos(position * frequency), used inside and also an output: where FP16 would be off by whole turns."""
    w = Writer()
    positions = w.input("positions", ["T"], ir.DataType.INT64)
    x = w.input("x", ["T", 4])
    column = w.op(
        "column", "Unsqueeze", w.op("floats", "Cast", positions, to=int(FLOAT)), w.constant("one", np.array([1]))
    )
    angles = w.op("angles", "Mul", column, w.constant("frequencies", np.array([[1.0, 0.5, 0.1, 0.01]], np.float32)))
    cosine = w.op("cosine", "Cos", angles)
    w.output(cosine, ["T", 4])
    w.output(w.op("y", "Mul", x, cosine), ["T", 4])
    return w.model()


def test_positions_are_computed_in_fp32() -> None:
    model = rotary()
    assert position_only_nodes(model.graph) == {"floats", "column", "angles", "cosine"}
    cast_floats(model, "f16")
    positions = np.array([0, 4097, 30001])
    result = run(model, positions=positions, x=np.ones((3, 4), np.float16))
    assert model.graph.outputs[0].name == "cosine"
    assert [value.dtype for value in model.graph.outputs] == [HALF, HALF]
    expected = np.cos(positions[:, None] * np.array([1.0, 0.5, 0.1, 0.01]))
    np.testing.assert_allclose(result, expected, atol=2e-3)  # FP16 of 30001 alone is off by 16


def test_an_embedding_lookup_is_no_arithmetic_on_positions() -> None:
    w = Writer()
    ids = w.input("ids", ["T"], ir.DataType.INT64)
    rows = w.op("rows", "Gather", w.weight("table", 10, 4), ids, axis=0)
    w.output(w.op("y", "Relu", rows), ["T", 4])
    model = w.model()
    assert position_only_nodes(model.graph) == set()
    cast_floats(model, "f16")
    assert model.graph.outputs[0].dtype == HALF


def test_islands_inputs_and_outputs() -> None:
    model = gpt_mlp()
    cast_floats(model, "f16", node_types={"gelu": "f32"}, fp32_outputs=("residual",), fp32_inputs=("x",))
    drop_unused_weights(model.graph)
    by_name = {node.name: node for node in model.graph}
    assert model.graph.inputs[0].dtype == FLOAT
    assert model.graph.outputs[0].dtype == FLOAT
    assert by_name["gelu"].inputs[0].dtype == by_name["gelu"].outputs[0].dtype == FLOAT
    assert by_name["norm"].inputs[0].dtype == by_name["down"].inputs[0].dtype == HALF
    assert {value.dtype for value in model.graph.initializers.values()} == {HALF}
    x = np.random.default_rng(0).standard_normal((5, WIDTH)).astype(np.float32)
    np.testing.assert_allclose(run(model, x=x), run(gpt_mlp(), x=x), atol=0.02)


def test_scales_stay_fp32_but_for_blocks() -> None:
    model = gpt_mlp()
    quantize_graph(model, Recipe("int8_weight"), {})
    cast_floats(model, "f16")
    (first, *_) = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    assert first.inputs[1].dtype == FLOAT
    assert first.attributes["output_dtype"].as_int() == HALF
    blocks = gpt_mlp()
    quantize_graph(blocks, Recipe("int4", int4_method="rtn"), {})
    cast_floats(blocks, "f16")
    (first, *_) = [node for node in blocks.graph if node.op_type == "DequantizeLinear"]
    assert first.inputs[1].dtype == HALF


def test_f32_leaves_the_graph_alone_but_for_islands() -> None:
    model = gpt_mlp()
    before = [node.op_type for node in model.graph]
    cast_floats(model, "f32")
    assert [node.op_type for node in model.graph] == before


def test_a_weight_beyond_fp16_is_refused() -> None:
    model = gpt_mlp()
    model.graph.initializers["b_up"].const_value = ir.Tensor(np.full(256, 1e5, np.float32), name="b_up")
    with pytest.raises(BuildError, match="weight 'b_up' holds 100000, beyond FP16; build with --precision bf16"):
        cast_floats(model, "f16")
