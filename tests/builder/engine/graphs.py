"""Small graphs for engine tests, written with onnx-ir in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

OPSET = 24
WIDTH, INNER = 128, 256


class Writer:
    """Appends nodes by name; every node's output carries the node's name."""

    def __init__(self, seed: int = 0) -> None:
        self.graph = ir.Graph([], [], nodes=[], name="test", opset_imports={"": OPSET, "trtdecode": 1})
        self._random = np.random.default_rng(seed)

    def input(self, name: str, shape: Sequence[int | str], dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        value = ir.val(name, dtype, shape)
        self.graph.inputs.append(value)
        return value

    def weight(self, name: str, *shape: int, scale: float | None = None) -> ir.Value:
        std = shape[0] ** -0.5 if scale is None else scale
        return self.constant(name, (self._random.standard_normal(shape) * std).astype(np.float32))

    def constant(self, name: str, array: npt.ArrayLike) -> ir.Value:
        array = np.asarray(array)
        tensor = ir.Tensor(array, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def op(self, name: str, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        return self.ops(name, op_type, *inputs, num_outputs=1, **attributes)[0]

    def ops(
        self, name: str, op_type: str, *inputs: ir.Value | None, num_outputs: int, **attributes: Any
    ) -> Sequence[ir.Value]:
        node = ir.node(op_type, inputs, attributes, num_outputs=num_outputs, name=name)
        for index, value in enumerate(node.outputs):
            value.name = name if num_outputs == 1 else f"{name}.{index}"
        self.graph.append(node)
        return node.outputs

    def output(self, value: ir.Value, shape: Sequence[int | str]) -> None:
        value.shape, value.dtype = ir.Shape(shape), ir.DataType.FLOAT
        self.graph.outputs.append(value)

    def model(self) -> ir.Model:
        """The finished model, with the shapes that ONNX can infer."""
        from onnx_ir.passes.common import ShapeInferencePass

        model = ir.Model(self.graph, ir_version=11)
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
        return model


def projector() -> ir.Model:
    """LayerNorm -> GELU, then a linear layer: a vision projector in small."""
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    norm = w.op("norm", "LayerNormalization", x, w.weight("g", WIDTH), w.weight("b", WIDTH), axis=-1)
    act = w.op("gelu", "Gelu", norm)
    w.output(w.op("out", "MatMul", act, w.weight("w", WIDTH, INNER)), ["T", INNER])
    return w.model()


def gpt_mlp() -> ir.Model:
    """LayerNorm, matmul + bias + GELU, matmul + bias + residual: a GPT layer's second half."""
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    norm = w.op("norm", "LayerNormalization", x, w.weight("g", WIDTH), w.weight("b", WIDTH), axis=-1)
    up = w.op("up", "Gemm", norm, w.weight("w_up", INNER, WIDTH), w.weight("b_up", INNER), transB=1)
    act = w.op("gelu", "Gelu", up, approximate="tanh")
    down = w.op("down", "Gemm", act, w.weight("w_down", WIDTH, INNER), w.weight("b_down", WIDTH), transB=1)
    w.output(w.op("residual", "Add", x, down), ["T", WIDTH])
    return w.model()


def gated_mlp() -> ir.Model:
    """RMSNorm, gate and up in one matmul, SiLU, down, residual, and the next layer's RMSNorm: Llama's second half."""
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    norm = w.op("norm", "RMSNormalization", x, w.weight("g", WIDTH), axis=-1)
    both = w.op("gate_up", "Gemm", norm, w.weight("w_gate_up", 2 * INNER, WIDTH), transB=1)
    gate, up = w.ops("split", "Split", both, w.constant("sizes", np.array([INNER, INNER])), num_outputs=2, axis=1)
    product = w.op("product", "Mul", w.op("silu", "Swish", gate), up)
    down = w.op("down", "Gemm", product, w.weight("w_down", WIDTH, INNER), transB=1)
    total = w.op("residual", "Add", x, down)
    w.output(w.op("next_norm", "RMSNormalization", total, w.weight("g2", WIDTH), axis=-1), ["T", WIDTH])
    return w.model()


def classifier() -> ir.Model:
    """A linear layer with softmax."""
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    logits = w.op("head", "Gemm", x, w.weight("w", 32, WIDTH), w.weight("b", 32), transB=1)
    w.output(w.op("softmax", "Softmax", logits, axis=-1), ["T", 32])
    return w.model()
