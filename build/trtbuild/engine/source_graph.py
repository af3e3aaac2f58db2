"""Which of a version's graphs the engines are built from, in the form that the build works on.

Floats where the version has them. Of a version with INT8 alone (the default import) the codes are expanded to floats,
which then take the recipe's own scheme: TensorRT fuses INT8 weights by output channel, not in the CPU's small blocks.
A checkpoint's own INT4 codes are kept as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from trtdecode.errors import BuildError, ManifestError
from trtdecode.manifest import Manifest

Float32 = npt.NDArray[np.float32]


def source_name(manifest: Manifest, precision: str) -> str:
    """The manifest's name of the graph to build `precision` from.

    Raises:
        ManifestError: the version has none of them.
    """
    wanted = ("int4", "f32", "int8") if precision == "int4" else ("f32", "int8")
    for name in wanted:
        if name in manifest.graphs:
            return name
    raise ManifestError(
        f"this version has no graph to build {precision} engines from (present: {', '.join(sorted(manifest.graphs))}); "
        "import it again with `trtdecode import --precision f32`"
    )


def reference_name(manifest: Manifest, source: str) -> str:
    """The graph that parity compares with and calibration runs: floats where there are any."""
    return "f32" if "f32" in manifest.graphs else source


def expand_int8(model: ir.Model) -> int:
    """Turns stored INT8 codes into float weights, in place; returns how many matrices there were.

    Weights stay lazy: each is dequantised when its segment is prepared.
    """
    graph = model.graph
    tables: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        if node.op_type == "DequantizeLinear" and _is_stored_int8(node.inputs[0]):
            node.outputs[0].replace_all_uses_with(_floats_of(graph, node, tables))
            graph.remove(node, safe=True)
    for node in list(graph):
        if node.op_type == "Gather" and _is_stored_int8(node.inputs[0]):
            _expand_lookup(graph, node, tables)
    RemoveUnusedNodesPass()(model)  # the lookups of scales
    return len(tables)


def refuse_float_zero_points(model: ir.Model) -> None:
    """Refuses codes whose zero points are no integers (GGUF's Q4_1 and k-quants, kept): TensorRT has no such type.

    Raises:
        BuildError: names a matrix, and the import that helps.
    """
    for node in model.graph:
        codes = node.inputs[0] if node.op_type == "Cast" else None
        if codes is not None and codes.is_initializer() and codes.dtype in (ir.DataType.UINT4, ir.DataType.UINT8):
            raise BuildError(
                f"{codes.name}: the checkpoint's own codes are kept with zero points that are no integers, which "
                "TensorRT cannot read; import the model again with `trtdecode import --precision f32`"
            )


def _is_stored_int8(value: ir.Value | None) -> bool:
    return value is not None and value.is_initializer() and value.dtype == ir.DataType.INT8


def _floats_of(graph: ir.Graph, node: ir.Node, tables: dict[ir.Value, ir.Value]) -> ir.Value:
    """The float weight of a DequantizeLinear [rows, columns] with scales a row, or a block along the columns."""
    codes, scales = node.inputs[0], node.inputs[1]
    assert codes is not None and scales is not None
    if codes in tables:
        return tables[codes]
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    if len(node.inputs) > 2 or (axis, bool(block)) not in ((1, True), (0, False)):
        raise BuildError(
            f"node {node.name!r}: INT8 weights with zero points or scales on axis {axis} cannot be expanded; "
            "import the model again with `trtdecode import --precision f32`"
        )
    return _register(graph, codes, scales, tables)


def _register(graph: ir.Graph, codes: ir.Value, scales: ir.Value, tables: dict[ir.Value, ir.Value]) -> ir.Value:
    assert codes.const_value is not None and scales.const_value is not None
    name = f"{codes.name}.float"
    tensor = ir.LazyTensor(
        _dequantizer(codes.const_value, scales.const_value, name),
        dtype=ir.DataType.FLOAT,
        shape=ir.Shape(codes.shape or ()),
        name=name,
    )
    value = ir.Value(name=name, shape=codes.shape, type=ir.TensorType(ir.DataType.FLOAT), const_value=tensor)
    graph.register_initializer(value)
    tables[codes] = value
    return value


def _dequantizer(codes: ir.TensorProtocol, scales: ir.TensorProtocol, name: str) -> Callable[[], ir.Tensor]:
    def dequantize() -> ir.Tensor:
        integers = codes.numpy()
        factors = scales.numpy().reshape(len(integers), -1).astype(np.float32)
        blocks = integers.reshape(*factors.shape, -1).astype(np.float32)
        return ir.Tensor((blocks * factors[:, :, None]).reshape(integers.shape), name=name)

    return dequantize


def _expand_lookup(graph: ir.Graph, gather: ir.Node, tables: dict[ir.Value, ir.Value]) -> None:
    """Gather codes, Cast, Reshape, Mul by the gathered scales, Reshape -> Gather of the float table."""
    chain = [gather]
    for op_type in ("Cast", "Reshape", "Mul", "Reshape"):
        users = chain[-1].outputs[0].consumers()
        if len(users) != 1 or users[0].op_type != op_type:
            raise BuildError(f"node {gather.name!r}: looks up INT8 codes in a form that is not known")
        chain.append(users[0])
    codes, indices = gather.inputs
    scale_gather = _scale_lookup(chain[3], chain[2])
    assert codes is not None and indices is not None
    table = tables[codes] if codes in tables else _register(graph, codes, _input(scale_gather, 0), tables)
    lookup = ir.node("Gather", [table, indices], {"axis": 0}, name=gather.name)
    last = chain[-1].outputs[0]
    lookup.outputs[0].name = last.name
    graph.insert_before(gather, lookup)
    last.replace_all_uses_with(lookup.outputs[0])
    graph.remove(list(reversed(chain)), safe=True)


def _scale_lookup(product: ir.Node, codes: ir.Node) -> ir.Node:
    """The Gather of scales behind the other side of the product (through its Unsqueeze)."""
    for value in product.inputs:
        node = value.producer() if value is not None else None
        if node is not None and node is not codes:
            source = node.inputs[0].producer() if node.op_type == "Unsqueeze" and node.inputs[0] is not None else node
            if source is not None and source.op_type == "Gather":
                return source
    raise BuildError(f"node {product.name!r}: multiplies codes with scales in a form that is not known")


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value
