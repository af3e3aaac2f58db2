"""Cuts a decoder graph at its seam operators into segments, one engine each (DESIGN: the graph contract).

    gather | segment 0 | PagedAttention | segment 1 | ... | rows | last segment

* What depends on a table and an index input alone (the embedding lookup) stays outside TensorRT: a `GatherStep`.
* A table that is also a matmul's weight (a tied embedding) becomes an input of that segment, so one device tensor
  serves both.
* The row gather at the end moves in front of the last segment, which then computes only the rows that need logits.
  So each engine has one dynamic dimension.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass
from trtdecode.errors import BuildError, ManifestError
from trtdecode.executor.base import GRAPH_INPUTS, GRAPH_OUTPUT, HIDDEN_INPUT, OPERATOR_DOMAIN
from trtdecode.executor.engine_steps import (
    EngineStep,
    GatherStep,
    RowsStep,
    SeamStep,
    Step,
    TensorSpec,
)

from trtbuild.engine.shapes import spec_of

TOKENS = "T"
LOGIT_ROWS = "S"

#: Operators whose row t depends on row t of their inputs alone, so that gathering rows before or after is the same.
ROW_WISE = frozenset(
    {
        *("Add", "Cast", "Cos", "Div", "Gelu", "Gemm", "Identity", "LayerNormalization", "MatMul", "Max", "Min", "Mul"),
        *("Neg", "Pow", "RMSNormalization", "Reciprocal", "Relu", "RotaryEmbedding", "Sigmoid", "Sin", "Softmax"),
        *("Split", "Sqrt", "Squeeze", "Sub", "Swish", "Tanh", "Transpose", "Unsqueeze", "Where"),
    }
)


@dataclass(slots=True)
class Segment:
    """One piece of the graph, still in the graph's own precision."""

    name: str  # "segment_000"
    model: ir.Model
    dimension: str  # "T" or "S": the dynamic dimension of all its inputs and outputs


@dataclass(slots=True)
class CutGraph:
    """A graph in pieces. `EngineStep.file` holds segment names until the engines have files."""

    steps: tuple[Step, ...]
    segments: tuple[Segment, ...]
    tensors: dict[str, TensorSpec]
    tables: dict[str, ir.TensorProtocol]
    output: str = GRAPH_OUTPUT


def load_graph(path: Path) -> ir.Model:
    """Reads an ONNX file; weights stay in its external data file until they are used.

    Raises:
        ManifestError: missing or not ONNX.
    """
    try:
        return ir.load(path)
    except FileNotFoundError:
        raise ManifestError(f"{path}: not found; import the model again") from None
    except Exception as error:  # protobuf's own exceptions have no common public base
        raise ManifestError(f"{path}: not an ONNX file ({error}); import the model again") from error


def cut(model: ir.Model) -> CutGraph:
    """Cuts the graph. `model` is changed and must not be used afterwards.

    Raises:
        BuildError: the graph is not of the contract's form; the text names the node or value.
    """
    graph = model.graph
    seams = [node for node in graph if node.domain == OPERATOR_DOMAIN]
    for seam in seams:
        _declare_output(seam)
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    gathers = _hoistable_gathers(graph)
    rows = _take_row_gather(graph)
    return _Cutter(model, seams, gathers, rows).cut()


def is_rank_part(graph: ir.Graph) -> bool:
    """Whether this is one rank's part of a decoder, which computes nothing that means anything by itself."""
    return graph.outputs[0].name != GRAPH_OUTPUT or any(
        node.op_type == "AllReduce" or HIDDEN_INPUT in (value.name for value in node.inputs if value is not None)
        for node in graph
    )


def _declare_output(seam: ir.Node) -> None:
    """ONNX cannot infer the shapes of our operators: attention gives [T, heads * head_dim]; AllReduce says its own."""
    output = seam.outputs[0]
    if seam.op_type == "PagedAttention":
        width = seam.attributes["num_heads"].as_int() * seam.attributes["head_dim"].as_int()
        output.shape = ir.Shape([TOKENS, width])
    output.dtype = ir.DataType.FLOAT if seam.inputs[0] is None else seam.inputs[0].dtype or ir.DataType.FLOAT


def _hoistable_gathers(graph: ir.Graph) -> list[ir.Node]:
    """Lookups of graph inputs in stored tables."""
    found = []
    for node in graph:
        if node.op_type != "Gather" or node.domain:
            continue
        table, indices = node.inputs
        if table is not None and indices is not None and table.is_initializer() and indices.is_graph_input():
            axis = node.attributes.get_int("axis", 0)
            if axis != 0:
                raise BuildError(f"node {node.name!r}: gathers a table along axis {axis}; the contract has axis 0")
            found.append(node)
    return found


def _take_row_gather(graph: ir.Graph) -> ir.Node | None:
    """Takes `Gather(x, logit_indices)` out of the graph; returns the node, now without uses."""
    for node in graph:
        if node.op_type == "Gather" and node.inputs[1] is not None and node.inputs[1].name == "logit_indices":
            source = node.inputs[0]
            assert source is not None
            node.outputs[0].replace_all_uses_with(source, replace_graph_outputs=True)
            graph.remove(node, safe=True)
            return node
    return None


class _Cutter:
    """One cut: levels of nodes, then for each level the seams that end it and the segment that follows."""

    def __init__(
        self, model: ir.Model, seams: list[ir.Node], gathers: list[ir.Node], row_gather: ir.Node | None
    ) -> None:
        self._model = model
        self._graph = model.graph
        self._seams = seams
        self._gathers = gathers
        self._outside = {*seams, *gathers}
        self._row_gather = row_gather
        self._levels = self._find_levels()
        self._last = max(self._levels.values(), default=0)
        self._tables = {node.inputs[0].name: node.inputs[0] for node in gathers if node.inputs[0] is not None}
        self._tensors: dict[str, TensorSpec] = {}

    def cut(self) -> CutGraph:
        steps: list[Step] = [self._gather_step(node) for node in self._gathers]
        segments: list[Segment] = []
        for level in range(self._last + 1):
            steps.extend(self._seam_step(seam) for seam in self._seams if self._levels[seam] == level)
            nodes = [node for node, at in self._levels.items() if at == level and node not in self._outside]
            if not nodes:
                continue
            inputs, outputs = self._boundary(nodes)
            dimension = LOGIT_ROWS if level == self._last and self._row_gather is not None else TOKENS
            segment = self._segment(f"segment_{len(segments):03}", inputs, outputs, dimension)
            if dimension == LOGIT_ROWS:
                self._check_row_wise(nodes)
                steps.extend(self._rows_steps(segment, inputs))
            names = tuple(value.name or "" for value in segment.model.graph.inputs)
            results = tuple(value.name or "" for value in segment.model.graph.outputs)
            steps.append(EngineStep(segment.name, names, results, dimension))
            segments.append(segment)
        tables = {name: value.const_value for name, value in self._tables.items()}
        assert all(tensor is not None for tensor in tables.values())
        output = self._graph.outputs[0].name or GRAPH_OUTPUT
        return CutGraph(tuple(steps), tuple(segments), self._tensors, tables, output)

    def _find_levels(self) -> dict[ir.Node, int]:
        """For each node the number of seams on the longest way to it; a seam opens the level that it leads into.

        What is made of stored values alone (a dequantised weight) is where it is first used.
        """
        levels: dict[ir.Node, int] = {}
        for node in self._graph:
            producers = [value.producer() for value in node.inputs if value is not None]
            before = max((levels[producer] for producer in producers if producer is not None), default=0)
            levels[node] = before + (node.domain == OPERATOR_DOMAIN)
        for node in reversed(list(_stored_nodes(self._graph))):
            users = [user for value in node.outputs for user in value.consumers()]
            levels[node] = min((levels[user] for user in users), default=0)
        return levels

    def _boundary(self, nodes: list[ir.Node]) -> tuple[list[ir.Value], list[ir.Value]]:
        """Values that enter and leave a segment, each in order of first use."""
        inside = set(nodes)
        tables = set(self._tables.values())
        inputs: dict[ir.Value, None] = {}
        outputs: dict[ir.Value, None] = {}
        for node in nodes:
            for value in node.inputs:
                if value is None or (value.is_initializer() and value not in tables):
                    continue
                if value.producer() not in inside:
                    inputs[value] = None
            for value in node.outputs:
                if value.is_graph_output() or any(user not in inside for user in value.consumers()):
                    outputs[value] = None
        return list(inputs), list(outputs)

    def _segment(self, name: str, inputs: list[ir.Value], outputs: list[ir.Value], dimension: str) -> Segment:
        for value in (*inputs, *outputs):
            if value in self._tables.values():
                continue
            spec = spec_of(value, TOKENS)
            if value.name not in GRAPH_INPUTS and value.name != GRAPH_OUTPUT:
                self._tensors[value.name or ""] = spec
        graph = ir.convenience.extract(self._graph, inputs, outputs)
        graph.name = name
        model = ir.Model(graph, ir_version=self._model.ir_version)
        for original, value in zip((*inputs, *outputs), (*graph.inputs, *graph.outputs), strict=True):
            if original in self._tables.values():
                graph.initializers.pop(value.name or "", None)
                value.const_value = None
                continue
            spec = spec_of(original, dimension)
            value.shape = ir.Shape(spec.shape)
            if value.name == GRAPH_OUTPUT:
                self._tensors[GRAPH_OUTPUT] = spec
        return Segment(name, model, dimension)

    def _rows_steps(self, segment: Segment, inputs: Iterable[ir.Value]) -> list[Step]:
        """One gather of logit rows for each dynamic input of the last segment, which gets a name of its own."""
        steps: list[Step] = []
        for original, value in zip(inputs, segment.model.graph.inputs, strict=True):
            if original in self._tables.values():
                continue
            name = original.name or ""
            value.name = f"{name}.rows"
            self._tensors[value.name] = spec_of(original, LOGIT_ROWS)
            steps.append(RowsStep(name, value.name))
        return steps

    def _check_row_wise(self, nodes: list[ir.Node]) -> None:
        stored = _stored_nodes(self._graph)
        for node in nodes:
            if node.op_type not in ROW_WISE and not _takes_columns(node) and node not in stored:
                raise BuildError(
                    f"node {node.name!r} ({node.op_type}) comes after the last seam and may mix rows, so the gather of "
                    "logit rows cannot move in front of it; author the graph with row-wise operators there"
                )

    def _gather_step(self, node: ir.Node) -> GatherStep:
        table, indices = node.inputs
        assert table is not None and indices is not None
        output = node.outputs[0]
        self._tensors[output.name or ""] = spec_of(output, TOKENS)
        return GatherStep(table.name or "", indices.name or "", output.name or "")

    def _seam_step(self, node: ir.Node) -> SeamStep:
        output = node.outputs[0]
        self._tensors[output.name or ""] = spec_of(output, TOKENS)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        inputs = tuple(value.name or "" if value is not None else "" for value in node.inputs)
        return SeamStep(node.op_type, node.name or "", inputs, output.name or "", attributes)


def _stored_nodes(graph: ir.Graph) -> dict[ir.Node, None]:
    """Nodes, in order, whose every input is stored or made of stored values."""
    found: dict[ir.Node, None] = {}
    for node in graph:
        values = [value for value in node.inputs if value is not None]
        if values and all(value.is_initializer() or value.producer() in found for value in values):
            found[node] = None
    return found


def _takes_columns(node: ir.Node) -> bool:
    """A lookup of stored column numbers: GPTQ's activation order."""
    indices = node.inputs[1] if node.op_type == "Gather" else None
    return indices is not None and indices.is_initializer() and node.attributes.get_int("axis", 0) == 1
