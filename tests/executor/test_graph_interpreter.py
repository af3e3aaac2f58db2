"""The interpreter itself: refusals, constants, what is freed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from trtdecode.errors import UnsupportedError
from trtdecode.executor.graph_interpreter import GraphInterpreter
from trtdecode.executor.onnx_graph import read_graph


def write(directory: Path, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray]) -> Path:
    """A graph from x [N] to y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path = directory / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)]), str(path))
    return path


def interpreter(path: Path, dtype: torch.dtype = torch.float32) -> GraphInterpreter:
    return GraphInterpreter(read_graph(path), device=torch.device("cpu"), dtype=dtype, seam_operators={})


def test_unsupported_operators_are_all_listed_with_their_nodes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Einsum", ["x"], ["a"], name="first", equation="i->i"),
        helper.make_node("Tanh", ["a"], ["b"], name="fine"),
        helper.make_node("Einsum", ["b"], ["c"], name="second", equation="i->i"),
        helper.make_node("Cast", ["c"], ["d"], name="cast", to=TensorProto.STRING),
        helper.make_node("Mamba", ["d"], ["y"], name="other", domain="custom"),
    ]
    with pytest.raises(UnsupportedError) as caught:
        interpreter(write(tmp_path, nodes, {}))
    assert str(caught.value) == (
        f"{tmp_path}/graph.onnx: the torch executor has no operator Cast (cast); Einsum (first, second); "
        "custom::Mamba (other); add it to executor/torch_operators.py or serve with executor openvino"
    )


def test_what_depends_on_weights_alone_is_computed_once(tmp_path: Path) -> None:
    """And is not reported as computed in a step."""
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scale"], ["dense"]),
        helper.make_node("Constant", [], ["one"], value_float=1.0),
        helper.make_node("Add", ["dense", "one"], ["shifted"]),
        helper.make_node("Mul", ["x", "shifted"], ["z"]),
        helper.make_node("Neg", ["z"], ["y"]),
    ]
    weights = {"codes": np.array([2, -4, 6], np.int8), "scale": np.float32(0.5)}
    runner = interpreter(write(tmp_path, nodes, weights))
    seen: list[str] = []
    result = runner.run({"x": torch.tensor([1.0, 2.0, 3.0])}, lambda name, _value: seen.append(name))
    assert result["y"].tolist() == [-2.0, 2.0, -12.0]
    assert seen == ["z", "y"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_floats_are_held_and_computed_in_the_asked_type(tmp_path: Path, dtype: torch.dtype) -> None:
    nodes = [
        helper.make_node("Cast", ["ids"], ["as_float"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "as_float"], ["y"]),
    ]
    runner = interpreter(write(tmp_path, nodes, {"ids": np.array([1, 2], np.int64)}), dtype)
    result = runner.run({"x": torch.tensor([0.5, 0.25], dtype=dtype)})["y"]
    assert (result.dtype, result.tolist()) == (dtype, [1.5, 2.25])
