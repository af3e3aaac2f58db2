"""Every operator of the torch executor against ONNX's own reference implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from trtdecode.executor.torch_operators import OPERATORS

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def int8(*shape: int) -> np.ndarray:
    return RANDOM.integers(-127, 128, shape).astype(np.int8)


COS, SIN = np.cos(floats(10, 4)), np.sin(floats(10, 4))

CASES: list[tuple[str, list[np.ndarray | None], dict[str, Any]]] = [
    *(
        (name, [floats(3, 4)], {})
        for name in ("Abs", "Neg", "Tanh", "Sigmoid", "Relu", "Erf", "Sin", "Cos", "Identity")
    ),
    *((name, [np.abs(floats(3, 4)) + 0.1], {}) for name in ("Sqrt", "Reciprocal")),
    *((name, [floats(3, 4), floats(4)], {}) for name in ("Add", "Sub", "Mul", "Div", "Max", "Greater")),
    ("Pow", [np.abs(floats(3, 4)), np.float32(2.5)], {}),
    ("MatMul", [floats(5, 3), floats(3, 4)], {}),
    ("Gather", [floats(6, 4), ints(5, 0, 5)], {"axis": 0}),
    ("Gather", [floats(3, 6), np.array([[1, 2], [5, 0]])], {"axis": -1}),
    ("Gemm", [floats(5, 3), floats(4, 3), floats(4)], {"transB": 1}),
    ("Gemm", [floats(3, 5), floats(3, 4)], {"transA": 1, "alpha": 0.5}),
    ("Gemm", [floats(5, 3), floats(3, 4), floats(5, 4)], {"beta": 0.25}),
    ("Transpose", [floats(2, 3, 4)], {"perm": [2, 0, 1]}),
    ("Transpose", [floats(2, 3)], {}),
    ("Reshape", [floats(2, 3, 4), ints(0, -1)], {}),
    ("Reshape", [floats(0, 4), ints(0, 2, 2)], {"allowzero": 1}),
    ("Squeeze", [floats(1, 3, 1), ints(0)], {}),
    ("Squeeze", [floats(1, 3, 1)], {}),
    ("Unsqueeze", [floats(3, 4), ints(0, -1)], {}),
    ("Unsqueeze", [floats(3), ints(2, 1)], {}),
    ("Expand", [floats(3, 1), ints(2, 1, 4)], {}),
    ("Concat", [floats(2, 3), floats(2, 1)], {"axis": -1}),
    ("Split", [floats(2, 7), ints(3, 4)], {"axis": -1}),
    ("Split", [floats(7, 2)], {"axis": 0, "num_outputs": 3}),
    ("Slice", [floats(5, 6), ints(1), ints(-1), ints(1), ints(2)], {}),
    ("Slice", [floats(5, 6), ints(1, 0), ints(4, 2)], {}),
    ("Shape", [floats(2, 3, 4)], {"start": 1}),
    ("ReduceSum", [floats(3, 4), ints(-1)], {"keepdims": 1}),
    ("ReduceSum", [floats(3, 4), ints(0)], {"keepdims": 0}),
    ("TopK", [floats(3, 6), ints(2)], {"axis": -1}),
    ("ScatterElements", [floats(3, 4), np.array([[0, 2], [1, 3], [3, 0]]), floats(3, 2)], {"axis": -1}),
    *((name, [floats(3, 4), ints(-1)], {"keepdims": 1}) for name in ("ReduceMean", "ReduceMax", "ReduceL2")),
    *((name, [floats(3, 4), ints(0)], {"keepdims": 0}) for name in ("ReduceMean", "ReduceMax", "ReduceL2")),
    ("Softmax", [floats(3, 4)], {"axis": -1}),
    ("Gelu", [floats(3, 4)], {}),
    ("Gelu", [floats(3, 4)], {"approximate": "tanh"}),
    ("Swish", [floats(3, 4)], {}),
    ("Swish", [floats(3, 4)], {"alpha": 1.7}),
    ("RMSNormalization", [floats(3, 4), floats(4)], {"axis": -1, "epsilon": 1e-3}),
    ("LayerNormalization", [floats(3, 4), floats(4), floats(4)], {"axis": -1, "epsilon": 1e-3}),
    ("LayerNormalization", [floats(3, 4), floats(4)], {"axis": -1}),
    ("RotaryEmbedding", [floats(2, 3, 5, 8), COS, SIN, RANDOM.integers(0, 10, (2, 5))], {}),
    ("RotaryEmbedding", [floats(2, 5, 24), COS, SIN, RANDOM.integers(0, 10, (2, 5))], {"num_heads": 3}),
    ("RotaryEmbedding", [floats(2, 5, 24), floats(2, 5, 4), floats(2, 5, 4), None], {"num_heads": 3}),
    (
        "RotaryEmbedding",
        [floats(2, 5, 24), COS, SIN, RANDOM.integers(0, 10, (2, 5))],
        {"num_heads": 3, "interleaved": 1},
    ),
    (
        "RotaryEmbedding",
        [floats(2, 5, 36), COS, SIN, RANDOM.integers(0, 10, (2, 5))],
        {"num_heads": 3, "rotary_embedding_dim": 8},
    ),
    ("DequantizeLinear", [int8(4, 6), np.float32(0.5)], {}),
    ("DequantizeLinear", [int8(4, 6), floats(4)], {"axis": 0}),
    ("DequantizeLinear", [int8(4, 6), floats(4), int8(4)], {"axis": 0}),
    ("DequantizeLinear", [int8(4, 6), floats(4, 2)], {"axis": 1, "block_size": 3}),
    ("DequantizeLinear", [int8(6, 4), floats(2, 4), int8(2, 4)], {"axis": 0, "block_size": 3}),
]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [pytest.param(*case, id=f"{case[0]}-{index}") for index, case in enumerate(CASES)],
)
def test_operator_equals_onnx(op_type: str, inputs: list[np.ndarray | None], attributes: dict[str, Any]) -> None:
    arrays = [None if value is None else np.asarray(value) for value in inputs]
    expected = onnx_reference(op_type, arrays, attributes)
    tensors = [None if array is None else torch.from_numpy(array.copy()) for array in arrays]
    actual = OPERATORS[op_type](attributes, *tensors)
    results = actual if isinstance(actual, tuple) else (actual,)
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape
        np.testing.assert_allclose(result.numpy(), wanted, atol=2e-6, rtol=1e-5)


def test_every_operator_has_a_case() -> None:
    assert set(OPERATORS) == {op_type for op_type, _, _ in CASES}


def onnx_reference(op_type: str, arrays: list[np.ndarray | None], attributes: dict[str, Any]) -> list[np.ndarray]:
    names = ["" if array is None else f"x{index}" for index, array in enumerate(arrays)]
    num_outputs = {"Split": attributes.get("num_outputs", 2), "TopK": 2}.get(op_type, 1)
    outputs = [f"y{index}" for index in range(num_outputs)]
    node = helper.make_node(op_type, names, outputs, **attributes)
    given = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=onnx.IR_VERSION)
    return ReferenceEvaluator(model).run(None, given)
