"""The tables outside the engines (embeddings) in their final type, and a tied head that reads one.

A tied embedding is one device tensor: gathered from at the start, multiplied with at the end. In INT8 it lies as
[width, vocab], as the head's matmul wants it, so that TensorRT needs no transpose of it in every step; the gather then
takes columns. Its scales, one a vocabulary entry, are a second small table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from trtdecode.errors import BuildError
from trtdecode.executor.base import GRAPH_OUTPUT
from trtdecode.executor.engine_steps import GatherStep, Step, TensorSpec

from trtbuild.engine.segments import CutGraph
from trtbuild.engine.shapes import DTYPE_NAMES
from trtbuild.quantize.float_types import FLOAT_TYPES, numpy_type
from trtbuild.quantize.int8 import quantize_rows
from trtbuild.quantize.linears import Linear, find_linears
from trtbuild.quantize.recipe import Recipe


def settle_tables(cut: CutGraph, recipe: Recipe) -> tuple[CutGraph, dict[str, ir.TensorProtocol]]:
    """Converts every table and the steps and segments that use it (segments are changed in place).

    Returns:
        The cut graph with new steps and specs, and the tables to write.
    """
    steps: list[Step] = []
    tensors = dict(cut.tensors)
    tables: dict[str, ir.TensorProtocol] = {}
    for step in cut.steps:
        if not isinstance(step, GatherStep):
            steps.append(step)
            continue
        heads = _tied_heads(cut, step.table)
        source = cut.tables[step.table]
        if source.dtype != ir.DataType.FLOAT:
            _require_untied(step.table, heads)
            tables[step.table] = source  # a graph that comes quantised dequantises the gathered rows itself
            tensors[step.table] = _spec(source)
            steps.append(step)
        elif recipe.quantizes_embedding:
            steps.append(_settle_int8(step, source, heads, tables, recipe))
        else:
            tables[step.table] = _as_float(source, step.table, recipe.float_type)
            for _, linear in heads:
                linear.weight.dtype = FLOAT_TYPES[recipe.float_type]
            steps.append(step)
    tensors |= {name: _spec(table) for name, table in tables.items()}
    return dataclasses.replace(cut, steps=tuple(steps), tensors=tensors), tables


def typed_specs(tensors: Mapping[str, TensorSpec], float_type: str) -> dict[str, TensorSpec]:
    """Specs of the float32 graph in the engines' types; logits and tables have theirs already."""
    return {
        name: dataclasses.replace(spec, dtype=float_type) if spec.dtype == "f32" and name != GRAPH_OUTPUT else spec
        for name, spec in tensors.items()
    }


def write_tables(path: Path, tables: dict[str, ir.TensorProtocol]) -> None:
    """Writes all tables as one safetensors file, which the executor maps onto the device."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(table.numpy()) for name, table in tables.items()}, path)


def _settle_int8(
    step: GatherStep,
    source: ir.TensorProtocol,
    heads: list[tuple[ir.Graph, Linear]],
    tables: dict[str, ir.TensorProtocol],
    recipe: Recipe,
) -> GatherStep:
    codes, scales = quantize_rows(np.asarray(source.numpy(), np.float32), source.shape[1])
    scales_name = f"{step.table}.scales"
    for graph, linear in heads:
        _dequantize_head(graph, linear, scales.reshape(-1))
    lies_transposed = bool(heads)
    stored = np.ascontiguousarray(codes.T) if lies_transposed else codes
    tables[step.table] = ir.Tensor(stored, name=step.table)
    tables[scales_name] = _as_float(ir.Tensor(scales.reshape(-1), name=scales_name), scales_name, recipe.float_type)
    return dataclasses.replace(step, axis=1 if lies_transposed else 0, scales=scales_name)


def _tied_heads(cut: CutGraph, table: str) -> list[tuple[ir.Graph, Linear]]:
    """The linear layers whose weight is this table."""
    return [
        (segment.model.graph, linear)
        for segment in cut.segments
        for linear in find_linears(segment.model.graph)
        if linear.weight.is_graph_input() and linear.weight.name == table
    ]


def _require_untied(table: str, heads: list[tuple[ir.Graph, Linear]]) -> None:
    if heads:
        raise BuildError(
            f"table {table!r} is stored quantised and tied to {heads[0][1].name!r}; build from the f32 graph"
        )


def _dequantize_head(graph: ir.Graph, linear: Linear, scales: Any) -> None:
    """Turns `Gemm(h, table, transB=1)` into a matmul with the dequantised table, which now enters as int8 [in, out]."""
    table, node = linear.weight, linear.node
    table.dtype = ir.DataType.INT8
    table.shape = ir.Shape([linear.num_in, linear.num_out] if linear.is_out_in else list(table.shape or ()))
    name = f"{linear.name}/weight_scale"
    value = ir.Value(
        name=name,
        shape=ir.Shape(scales.shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.Tensor(scales, name=name),
    )
    graph.register_initializer(value)
    dequantize = ir.node("DequantizeLinear", [table, value], {"axis": 1}, name=f"{linear.name}/weight_dequantize")
    output = dequantize.outputs[0]
    output.name, output.dtype, output.shape = dequantize.name, ir.DataType.FLOAT, table.shape
    graph.insert_before(node, dequantize)
    node.replace_input_with(1, output)
    if node.op_type == "Gemm":
        node.attributes["transB"] = ir.AttrInt64("transB", 0)


def _as_float(tensor: ir.TensorProtocol, name: str, float_type: str) -> ir.TensorProtocol:
    dtype = FLOAT_TYPES[float_type]
    return ir.Tensor(tensor.numpy().astype(numpy_type(dtype)), dtype=dtype, name=name)


def _spec(tensor: ir.TensorProtocol) -> TensorSpec:
    return TensorSpec(DTYPE_NAMES[tensor.dtype], tuple(int(size) for size in tensor.shape))
