"""Rewrites of a decoder for OpenVINO's CPU plugin, made on the model in memory: the file on disk stays as it is.

One rule so far. Graphs hold a gated MLP's gate and up projections as one matrix product, followed by a Split. The CPU
plugin copies in Split, and fuses an activation only into the product that feeds it; so here the product is undone:

    x -> MatMul([gate; up]) -> Split -> act(gate) * up    becomes    act(MatMul(gate)) * MatMul(up)

The two weights are views of rows of the one, so nothing is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import openvino as ov

#: Operators that the plugin fuses into the matrix product before them.
ACTIVATIONS = ("Swish", "Gelu", "Relu")


def split_gated_products(model: ov.Model) -> int:
    """Applies the rule everywhere it fits; returns how many products were divided."""
    count = 0
    for split in [node for node in model.get_ordered_ops() if node.get_type_name() == "VariadicSplit"]:
        if not _feeds_activation(split) or not _is_product(split.input_value(0)):
            continue
        sizes = split.input_value(2).get_node().data
        ends = np.cumsum(sizes).tolist()
        for output, begin, end in zip(split.outputs(), [0, *ends], ends, strict=False):
            part = _rows_of(split.input_value(0), begin, end)
            for target in output.get_target_inputs():
                target.replace_source_output(part)
        count += 1
    if count:
        model.validate_nodes_and_infer_types()
    return count


def _feeds_activation(split: Any) -> bool:
    readers = [target.get_node().get_type_name() for target in split.output(0).get_target_inputs()]
    return len(split.outputs()) == 2 and readers != [] and all(name in ACTIVATIONS for name in readers)


def _is_product(value: Any) -> bool:
    """A MatMul with constant weights [out, in], perhaps scaled and with a bias, as the frontend makes of Gemm."""
    node = value.get_node()
    if node.get_type_name() in ("Add", "Multiply"):
        return _is_product(node.input_value(0))
    return node.get_type_name() == "MatMul" and node.get_attributes()["transpose_b"] is True


def _rows_of(value: Any, begin: int, end: int) -> Any:
    """The columns `begin` to `end` of a product's output, from the rows `begin` to `end` of its weights."""
    from openvino import opset13

    node = value.get_node()
    if node.get_type_name() == "MatMul":
        weights = _rows_of_weights(node.input_value(1), begin, end)
        part = opset13.matmul(node.input_value(0), weights, False, True)
        part.set_friendly_name(f"{node.get_friendly_name()}/{begin}:{end}")
        return part.output(0)
    make = {"Add": opset13.add, "Multiply": opset13.multiply}[node.get_type_name()]
    beside = _rows_of_weights(node.input_value(1), begin, end)  # a bias [out], or a scalar
    return make(_rows_of(node.input_value(0), begin, end), beside).output(0)


class _RowsOfConstant:
    """Rows of a constant as an array that keeps the constant alive.

    OpenVINO's binding shares writable memory only, though nothing writes to a constant; numpy's own view of one is
    read-only, so the array is described by hand.
    """

    def __init__(self, constant: Any, begin: int, end: int) -> None:
        rows = constant.data[begin:end]
        self._constant = constant
        self.__array_interface__ = {
            "version": 3,
            "typestr": rows.dtype.str,
            "shape": rows.shape,
            "data": (rows.ctypes.data, False),
        }


def _packed_rows(constant: Any, begin: int, end: int) -> ov.Tensor:
    """Rows of a constant of 4-bit values, two a byte; copied, since rows may begin in the middle of a byte."""
    import openvino as ov

    shape = constant.get_output_shape(0)
    width = int(np.prod(shape[1:]))
    packed = constant.data.reshape(-1).view(np.uint8)
    first = begin * width // 2
    values = packed[first : (end * width + 1) // 2]
    if begin * width % 2:
        values = (values >> 4) | np.append(values[1:] << 4, np.uint8(0))
    tensor = ov.Tensor(constant.get_output_element_type(0), ov.Shape([end - begin, *shape[1:]]))
    target = tensor.data.reshape(-1).view(np.uint8)
    target[:] = values[: target.size]
    return tensor


def _rows_of_weights(value: Any, begin: int, end: int) -> Any:
    """Rows of constant weights, through the operators that unpack quantised ones. Scalars stay."""
    from openvino import opset13

    if not value.get_partial_shape().rank.get_length():
        return value
    node = value.get_node()
    kind = node.get_type_name()
    if kind == "Constant" and value.get_element_type().bitwidth < 8:
        return opset13.constant(_packed_rows(node, begin, end)).output(0)
    if kind == "Constant":
        return opset13.constant(np.asarray(_RowsOfConstant(node, begin, end)), shared_memory=True).output(0)
    first = node.input_value(0)
    if kind == "Reshape":
        shape = np.array([end - begin, *node.shape[1:]], np.int64)
        return opset13.reshape(_rows_of_weights(first, begin, end), opset13.constant(shape), False).output(0)
    if kind == "Unsqueeze":
        return opset13.unsqueeze(_rows_of_weights(first, begin, end), node.input_value(1)).output(0)
    if kind == "Convert":
        return opset13.convert(_rows_of_weights(first, begin, end), value.get_element_type().to_string()).output(0)
    make = {"Multiply": opset13.multiply, "Subtract": opset13.subtract}[kind]
    return make(_rows_of_weights(first, begin, end), _rows_of_weights(node.input_value(1), begin, end)).output(0)
