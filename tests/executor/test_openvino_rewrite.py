"""The rewrite of merged gate and up products: where it fits it changes nothing but the operators, elsewhere nothing."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
import pytest
from onnx import TensorProto, helper, numpy_helper
from trtdecode.executor.openvino_rewrite import split_gated_products

INNER, WIDTH, GROUP = 48, 64, 32
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((5, WIDTH)).astype(np.float32)


def write_mlp(
    directory: Path,
    weights: str = "f32",
    *,
    bias: bool = False,
    activation: str | None = "Swish",
    sizes: tuple[int, ...] = (INNER, INNER),
    trans_b: int = 1,
) -> Path:
    """act(gate) * up as a merged product, or a near miss of it."""
    initializers, nodes = [], []

    def constant(name: str, array: np.ndarray) -> str:
        initializers.append(numpy_helper.from_array(array, name))
        return name

    dense = RANDOM.standard_normal((2 * INNER, WIDTH)).astype(np.float32)
    if weights == "f32":
        weight = constant("w", dense if trans_b else dense.T.copy())
    else:
        codes = constant("w", RANDOM.integers(-127, 128, (2 * INNER, WIDTH)).astype(np.int8))
        by_group = weights == "int8 by group"
        scales = RANDOM.uniform(0.01, 0.02, (2 * INNER, WIDTH // GROUP) if by_group else 2 * INNER)
        attributes = {"axis": 1, "block_size": GROUP} if by_group else {"axis": 0}
        inputs = [codes, constant("w_scale", scales.astype(np.float32))]
        nodes.append(helper.make_node("DequantizeLinear", inputs, ["w_dense"], **attributes))
        weight = "w_dense"
    product = ["x", weight] + ([constant("b", RANDOM.standard_normal(2 * INNER).astype(np.float32))] if bias else [])
    nodes.append(helper.make_node("Gemm", product, ["both"], transB=trans_b))
    parts = [f"part{index}" for index in range(len(sizes))]
    nodes.append(helper.make_node("Split", ["both", constant("sizes", np.array(sizes))], parts, axis=1))
    first = parts[0]
    if activation:
        nodes.append(helper.make_node(activation, [first], ["acted"]))
        first = "acted"
    nodes.append(helper.make_node("Mul", [first, parts[1]], ["y"]))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializers,
    )
    path = directory / "mlp.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11), str(path))
    return path


def run(model: ov.Model) -> np.ndarray[Any, Any]:
    properties = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    compiled = ov.Core().compile_model(model, "CPU", properties)
    return np.array(compiled([X])[0])


def kinds(model: ov.Model) -> Counter[str]:
    return Counter(node.get_type_name() for node in model.get_ops())


@pytest.mark.parametrize("weights", ["f32", "int8 by row", "int8 by group"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["Swish", "Gelu", "Relu"])
def test_one_product_becomes_two_with_the_same_result(
    tmp_path: Path, weights: str, bias: bool, activation: str
) -> None:
    path = write_mlp(tmp_path, weights, bias=bias, activation=activation)
    expected = run(ov.Core().read_model(path))
    model = ov.Core().read_model(path)
    assert split_gated_products(model) == 1
    gc.collect()  # the old constants are gone from the model; the views must keep what they show
    assert (kinds(model)["MatMul"], kinds(model)["VariadicSplit"]) == (2, 0)
    np.testing.assert_allclose(run(model), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "near_miss",
    [{"activation": None}, {"trans_b": 0}, {"sizes": (32, 32, 32)}],
    ids=["no activation", "weights the other way", "three parts"],
)
def test_near_misses_stay_as_they_are(tmp_path: Path, near_miss: dict[str, Any]) -> None:
    model = ov.Core().read_model(write_mlp(tmp_path, **near_miss))
    before = kinds(model)
    assert split_gated_products(model) == 0
    assert kinds(model) == before
