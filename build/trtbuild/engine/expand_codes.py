"""Stored codes of a decoder graph -> the floats they stand for, where engines are not built from the codes themselves.

Matrices come in two forms (graph/matrix.py): a DequantizeLinear, or (Cast(codes) - zeros) * scales where zero points
are no integers; each is multiplied with, looked up, or both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from trtdecode.errors import BuildError

Float32 = npt.NDArray[np.float32]

_CODES = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4)
_REMEDY = "import the model again with `trtdecode import --precision f32`"

#: From the codes to the floats, by whether zero points are written out.
_LOOKUPS = (("Gather", "Cast", "Reshape", "Mul", "Reshape"), ("Gather", "Cast", "Sub", "Mul", "Reshape"))
_SHIFTED = ("Cast", "Sub", "Mul", "Reshape")


def expand_codes(model: ir.Model, *, keep: Callable[[ir.Node], bool] = lambda user: False) -> int:
    """Changes `model` in place; returns how many matrices were expanded.

    Weights stay lazy: each is dequantised when its segment is prepared.

    Args:
        keep: whether the codes that a node multiplies with stay; those that are looked up too never do.

    Raises:
        BuildError: codes are used in a form that is not known; the text names node and remedy.
    """
    graph = model.graph
    floats: dict[ir.Value, ir.Value] = {}
    lookups = [node for node in graph if node.op_type == "Gather" and _is_codes(node.inputs[0])]
    tables = {node.inputs[0] for node in lookups}
    for node in list(graph):
        codes = node.inputs[0] if node.op_type in ("DequantizeLinear", "Cast") else None
        if codes is not None and _is_codes(codes):
            chain = _chain(node, (_SHIFTED,)) if node.op_type == "Cast" else [node]
            users = chain[-1].outputs[0].consumers()
            if codes in tables or not all(map(keep, users)):
                _expand_dense(graph, chain, floats)
    for node in lookups:
        _expand_lookup(graph, node, floats)
    RemoveUnusedNodesPass()(model)  # the lookups of scales
    return len(floats)


def _is_codes(value: ir.Value | None) -> bool:
    return value is not None and value.is_initializer() and value.dtype in _CODES


def _expand_dense(graph: ir.Graph, chain: list[ir.Node], floats: dict[ir.Value, ir.Value]) -> None:
    """A DequantizeLinear, or the nodes of the written-out form."""
    node, codes = chain[0], _input(chain[0], 0)
    if len(chain) > 1:
        scales, zeros = _stored_side(chain[2], chain[1]), _stored_side(chain[1], chain[0])
    else:
        scales, zeros = _input(node, 1), node.inputs[2] if len(node.inputs) > 2 else None
        axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
        if (axis, bool(block)) not in ((1, True), (0, False)):
            raise BuildError(f"node {node.name!r}: codes with scales along axis {axis} cannot be expanded; {_REMEDY}")
    table = _float_table(graph, codes, scales, zeros, floats)
    chain[-1].outputs[0].replace_all_uses_with(table)
    graph.remove(list(reversed(chain)), safe=True)


def _expand_lookup(graph: ir.Graph, gather: ir.Node, floats: dict[ir.Value, ir.Value]) -> None:
    """A Gather of codes, dequantised by the gathered scales -> a Gather of the float table."""
    chain = _chain(gather, _LOOKUPS)
    scales = _stored_side(chain[3], chain[2])
    zeros = _stored_side(chain[2], chain[1]) if chain[2].op_type == "Sub" else None
    table = _float_table(graph, _input(gather, 0), scales, zeros, floats)
    lookup = ir.node("Gather", [table, _input(gather, 1)], {"axis": 0}, name=gather.name)
    last = chain[-1].outputs[0]
    lookup.outputs[0].name = last.name
    graph.insert_before(gather, lookup)
    last.replace_all_uses_with(lookup.outputs[0])
    graph.remove(list(reversed(chain)), safe=True)


def _chain(first: ir.Node, forms: Sequence[tuple[str, ...]]) -> list[ir.Node]:
    """`first` and its only users, one after another, whose operators make one of the forms."""
    for form in forms:
        chain = [first]
        for op_type in form[1:]:
            users = chain[-1].outputs[0].consumers()
            if len(users) != 1 or users[0].op_type != op_type:
                break
            chain.append(users[0])
        if len(chain) == len(form):
            return chain
    raise BuildError(f"{_input(first, 0).name}: codes that node {first.name!r} reads in an unknown form; {_REMEDY}")


def _stored_side(node: ir.Node, before: ir.Node) -> ir.Value:
    """What `node` combines the output of `before` with: a stored value, or one that is looked up there."""
    for value in node.inputs:
        while value is not None and not value.is_initializer():
            producer = value.producer()
            if producer is None or producer is before or producer.op_type not in ("Unsqueeze", "Gather"):
                break
            value = producer.inputs[0]
        if value is not None and value.is_initializer():
            return value
    raise BuildError(f"node {node.name!r}: combines codes with what is not stored; {_REMEDY}")


def _float_table(
    graph: ir.Graph, codes: ir.Value, scales: ir.Value, zeros: ir.Value | None, floats: dict[ir.Value, ir.Value]
) -> ir.Value:
    """The float matrix [out, in] of these codes, made once."""
    if codes not in floats:
        tensors = [None if value is None else value.const_value for value in (codes, scales, zeros)]
        shape = ir.Shape(_matrix_shape(codes))
        name = f"{codes.name}.float"
        tensor = ir.LazyTensor(_dequantizer(tensors, name), dtype=ir.DataType.FLOAT, shape=shape, name=name)
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.FLOAT), const_value=tensor)
        graph.register_initializer(value)
        floats[codes] = value
    return floats[codes]


def _matrix_shape(codes: ir.Value) -> tuple[int, int]:
    assert codes.shape is not None
    rows, *columns = (int(size) for size in codes.shape)
    return rows, int(np.prod(columns))


def _dequantizer(tensors: Sequence[ir.TensorProtocol | None], name: str) -> Callable[[], ir.Tensor]:
    codes, scales, zeros = tensors

    def dequantize() -> ir.Tensor:
        assert codes is not None and scales is not None
        rows = codes.shape[0]
        factors = scales.numpy().reshape(rows, -1, 1).astype(np.float32)
        groups = codes.numpy().astype(np.float32).reshape(rows, factors.shape[1], -1)
        if zeros is not None:
            groups = groups - zeros.numpy().astype(np.float32).reshape(factors.shape)
        return ir.Tensor((groups * factors).reshape(rows, -1), name=name)

    return dequantize


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value
