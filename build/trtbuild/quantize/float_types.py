"""Turns a float32 graph into a strongly typed one: every float in FP16 or BF16, except islands that stay FP32.

TensorRT builds what the graph says, so the types are settled here. Two kinds of nodes stay in FP32: those that a
mixed-precision file names, and arithmetic on positions alone (position 4097 times a frequency has no place in FP16).
Scales of Q/DQ stay FP32 too: a weight scale of 1e-5 is a subnormal in FP16. Only block-wise scales must have the
type of the result; TensorRT knows no other form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from trtdecode.errors import BuildError

FLOAT_TYPES: dict[str, ir.DataType] = {
    "f32": ir.DataType.FLOAT,
    "f16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
}

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def cast_floats(
    model: ir.Model,
    target: str,
    *,
    node_types: Mapping[str, str] | None = None,
    fp32_outputs: Collection[str] = (),
    fp32_inputs: Collection[str] = (),
) -> None:
    """Changes `model` in place.

    Args:
        target: "f32", "f16" or "bf16".
        node_types: what single nodes compute in instead, by name.
        fp32_outputs: names of graph outputs that stay FP32 (logits).
        fp32_inputs: names of graph inputs that stay FP32.

    Raises:
        BuildError: a weight is beyond the target's range.
    """
    types = dict.fromkeys(position_only_nodes(model.graph), FLOAT_TYPES["f32"])
    types |= {name: FLOAT_TYPES[type_name] for name, type_name in (node_types or {}).items()}
    _FloatCaster(model.graph, FLOAT_TYPES[target], types, set(fp32_outputs), set(fp32_inputs)).cast()


#: What arithmetic on positions is made of. A lookup of floats by an integer (an embedding) is not among them.
_ARITHMETIC = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Neg", "Pow", "Sqrt", "Reciprocal", "Cos", "Sin", "Floor", "Mod", "Min", "Max"),
        *("Cast", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Concat", "Slice", "Transpose", "Identity"),
    }
)


def position_only_nodes(graph: ir.Graph) -> set[str]:
    """Names of the arithmetic nodes whose every varying input comes from an integer graph input."""
    from_integers: set[ir.Value] = {value for value in graph.inputs if value.dtype in _INTEGERS}
    found: set[str] = set()
    for node in graph:
        varying = [value for value in node.inputs if value is not None and not value.is_initializer()]
        if node.op_type in _ARITHMETIC and varying and all(value in from_integers for value in varying):
            from_integers.update(node.outputs)
            found.add(node.name or "")
    return found


class _FloatCaster:
    def __init__(
        self,
        graph: ir.Graph,
        target: ir.DataType,
        node_types: Mapping[str, ir.DataType],
        fp32_outputs: set[str],
        fp32_inputs: set[str],
    ) -> None:
        self._graph = graph
        self._target = target
        self._node_types = node_types
        self._fp32_outputs = fp32_outputs
        self._fp32_inputs = fp32_inputs
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def cast(self) -> None:
        for value in self._graph.inputs:
            if value.dtype == ir.DataType.FLOAT and value.name not in self._fp32_inputs:
                value.dtype = self._target
        for node in list(self._graph):
            self._cast_node(node)
        for index, value in enumerate(self._graph.outputs):
            wanted = ir.DataType.FLOAT if value.name in self._fp32_outputs else self._target
            if value.dtype in FLOAT_TYPES.values() and value.dtype != wanted:
                self._cast_output(index, value, wanted)

    def _cast_node(self, node: ir.Node) -> None:
        wanted = self._node_types.get(node.name or "", self._target)
        if node.op_type in (_QUANTIZE, _DEQUANTIZE):
            self._cast_quantization(node, wanted)
            return
        for index, value in enumerate(node.inputs):
            if value is not None and self._is_float(value):
                node.replace_input_with(index, self._as_type(value, wanted, node))
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", int(wanted))
        for value in node.outputs:
            if value.dtype is None or value.dtype == ir.DataType.FLOAT:
                # A value whose type was never inferred is float when anything float went in.
                floats = any(v is not None and self._is_float(v) for v in node.inputs) or node.op_type == "Cast"
                if value.dtype == ir.DataType.FLOAT or floats:
                    value.dtype = wanted

    def _cast_quantization(self, node: ir.Node, wanted: ir.DataType) -> None:
        data, scale = node.inputs[0], node.inputs[1]
        assert data is not None and scale is not None
        if node.op_type == _QUANTIZE:
            node.replace_input_with(0, self._as_type(data, wanted, node))
            return
        if node.attributes.get_int("block_size", 0):
            node.replace_input_with(1, self._as_type(scale, wanted, node))
        else:
            node.attributes["output_dtype"] = ir.AttrInt64("output_dtype", int(wanted))
        node.outputs[0].dtype = wanted

    def _is_float(self, value: ir.Value) -> bool:
        return value.dtype in FLOAT_TYPES.values()

    def _as_type(self, value: ir.Value, wanted: ir.DataType, before: ir.Node) -> ir.Value:
        """`value` in another type: a converted weight, or a Cast node made once and put before its first user."""
        if value.dtype == wanted:
            return value
        if (value, wanted) in self._casts:
            return self._casts[value, wanted]
        if value.is_initializer():
            result = self._converted_weight(value, wanted)
        else:
            cast = ir.node("Cast", [value], {"to": int(wanted)}, name=f"{value.name}/to_{wanted.name.lower()}")
            result = cast.outputs[0]
            result.name, result.dtype, result.shape = cast.name, wanted, value.shape
            producer = value.producer()
            if producer is None:
                self._graph.insert_before(before, cast)
            else:
                self._graph.insert_after(producer, cast)
        self._casts[value, wanted] = result
        return result

    def _converted_weight(self, value: ir.Value, wanted: ir.DataType) -> ir.Value:
        assert value.const_value is not None and value.name is not None
        array = value.const_value.numpy()
        if wanted == ir.DataType.FLOAT16 and array.size:
            largest = float(np.max(np.abs(array)))
            if not largest <= np.finfo(np.float16).max:
                raise BuildError(f"weight {value.name!r} holds {largest:g}, beyond FP16; build with --precision bf16")
        name = f"{value.name}.{wanted.name.lower()}"
        tensor = ir.Tensor(array.astype(numpy_type(wanted)), dtype=wanted, name=name)
        converted = ir.Value(name=name, shape=value.shape, type=ir.TensorType(wanted), const_value=tensor)
        self._graph.register_initializer(converted)
        return converted

    def _cast_output(self, index: int, value: ir.Value, wanted: ir.DataType) -> None:
        """A graph output keeps its name; what it was becomes an inner value."""
        name = value.name
        value.name = f"{name}/{(value.dtype or wanted).name.lower()}"
        result = self._casts.get((value, wanted))  # inner users may have had it cast already
        if result is None:
            node = ir.node("Cast", [value], {"to": int(wanted)}, name=f"{name}/to_{wanted.name.lower()}")
            result = node.outputs[0]
            result.dtype, result.shape = wanted, value.shape
            self._graph.append(node)
        result.name = name
        self._graph.outputs[index] = result


def drop_unused_weights(graph: ir.Graph) -> None:
    """Removes initializers that no node uses any more."""
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]


def numpy_type(dtype: ir.DataType) -> Any:
    return ml_dtypes.bfloat16 if dtype == ir.DataType.BFLOAT16 else dtype.numpy()
