"""Puts Q and DQ nodes around a linear layer. Every per-channel node has an explicit axis.

TensorRT fuses what these write: the input's Quantize into the kernel before (a norm, an activation), the weight's
Dequantize into the matmul.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from trtbuild.quantize import fp8
from trtbuild.quantize.fp8 import Fp8Rows
from trtbuild.quantize.int4 import Int4Groups
from trtbuild.quantize.int8 import Int8Rows
from trtbuild.quantize.linears import Linear

Float32 = npt.NDArray[np.float32]


def quantize_weight(graph: ir.Graph, linear: Linear, rows: Int8Rows | Fp8Rows | Int4Groups) -> None:
    """Replaces the layer's weight by codes, scales and a DequantizeLinear.

    Args:
        rows: of [out, in]: INT8 or FP8 with one scale an output channel, or INT4 with one a group.
    """
    codes = linear.oriented(rows.codes)
    attributes: dict[str, Any] = {"axis": linear.output_axis}
    scales = np.asarray(rows.scales, np.float32)
    dtype = {Int8Rows: ir.DataType.INT8, Fp8Rows: ir.DataType.FLOAT8E4M3FN, Int4Groups: ir.DataType.INT4}[type(rows)]
    if isinstance(rows, Int4Groups):
        codes = codes.astype(ml_dtypes.int4)
        attributes = {"axis": 1 - linear.output_axis, "block_size": linear.num_in // scales.shape[1]}
        scales = np.asarray(linear.oriented(scales), np.float32)
    else:
        scales = scales.reshape(-1)
    stored = _initializer(graph, f"{linear.name}/weight", codes, dtype)
    stored_scales = _initializer(graph, f"{linear.name}/weight_scale", scales, ir.DataType.FLOAT)
    node = ir.node("DequantizeLinear", [stored, stored_scales], attributes, name=f"{linear.name}/weight_dequantize")
    _name_output(node, ir.DataType.FLOAT, linear.weight.shape)
    graph.insert_before(linear.node, node)
    linear.node.replace_input_with(1, node.outputs[0])


def quantize_input(graph: ir.Graph, linear: Linear, dtype: ir.DataType, scale: float) -> None:
    """Puts Quantize and Dequantize on the layer's input, per tensor. Layers that share input and scale share the pair.

    Args:
        dtype: INT8 or FLOAT8E4M3FN.
    """
    source = linear.input
    for user in source.consumers():
        if user.op_type == "QuantizeLinear" and _scale_of(user) == np.float32(scale):
            linear.node.replace_input_with(0, user.outputs[0].consumers()[0].outputs[0])
            return
    name = f"{linear.name}/input"
    zero = fp8.to_fp8(0.0) if dtype == ir.DataType.FLOAT8E4M3FN else np.zeros((), np.int8)
    scale_value = _initializer(graph, f"{name}_scale", np.float32(scale), ir.DataType.FLOAT)
    zero_value = _initializer(graph, f"{name}_zero", zero, dtype)
    quantize = ir.node("QuantizeLinear", [source, scale_value, zero_value], name=f"{name}_quantize")
    _name_output(quantize, dtype, source.shape)
    dequantize = ir.node("DequantizeLinear", [*quantize.outputs, scale_value], name=f"{name}_dequantize")
    _name_output(dequantize, ir.DataType.FLOAT, source.shape)
    graph.insert_before(linear.node, [quantize, dequantize])
    linear.node.replace_input_with(0, dequantize.outputs[0])


def scale_input(graph: ir.Graph, source: ir.Value, factors: Float32, *, before: ir.Node) -> ir.Value:
    """`source` times per-channel factors, computed before a node; the caller has divided the weight's columns."""
    name = f"{before.name}/input_factor"
    vector = _initializer(graph, f"{name}s", factors, ir.DataType.FLOAT)
    node = ir.node("Mul", [source, vector], name=name)
    _name_output(node, ir.DataType.FLOAT, source.shape)
    graph.insert_before(before, node)
    return node.outputs[0]


def replace_weight(graph: ir.Graph, node: ir.Node, index: int, array: npt.NDArray[Any]) -> None:
    """Gives one node a float32 weight of its own in place of a stored one (which others may share)."""
    value = _initializer(graph, f"{node.name}/input_{index}", np.asarray(array, np.float32), ir.DataType.FLOAT)
    node.replace_input_with(index, value)


def _scale_of(node: ir.Node) -> Any:
    scale = node.inputs[1]
    assert scale is not None and scale.const_value is not None
    return scale.const_value.numpy()


def _initializer(graph: ir.Graph, name: str, array: Any, dtype: ir.DataType) -> ir.Value:
    array = np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array)
    tensor = ir.Tensor(array, dtype=dtype, shape=ir.Shape(array.shape), name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def _name_output(node: ir.Node, dtype: ir.DataType, shape: ir.Shape | None) -> None:
    (output,) = node.outputs
    output.name, output.dtype, output.shape = node.name, dtype, shape
