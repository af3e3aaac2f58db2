"""One float32 segment -> the strongly typed ONNX file that TensorRT gets, and what to check on the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from trtdecode.executor.base import GRAPH_OUTPUT

from trtbuild.engine.patterns import Pattern, find_islands, find_patterns, find_quantized_patterns
from trtbuild.quantize.float_types import cast_floats, drop_unused_weights
from trtbuild.quantize.linears import find_linears, kept_schemes
from trtbuild.quantize.quantize_graph import Statistics, possible_scheme, quantize_graph
from trtbuild.quantize.recipe import Recipe
from trtbuild.rewrite.rules import rewrite

TENSORRT_FLOATS = {"f32": "Float", "f16": "Half", "bf16": "BFloat16"}


@dataclass(frozen=True, slots=True)
class PreparedGraph:
    """A graph ready for the builder."""

    onnx_path: Path
    patterns: tuple[Pattern, ...]
    operators: dict[str, str]  # node name -> operator type
    schemes: dict[str, str]  # linear layer -> scheme
    rewrites: dict[str, int]  # rule -> how often it applied


def prepare_graph(
    model: ir.Model,
    name: str,
    recipe: Recipe,
    statistics: Statistics,
    directory: Path,
    *,
    fp32_outputs: Sequence[str] = (GRAPH_OUTPUT,),
    fp32_inputs: Sequence[str] = (),
) -> PreparedGraph:
    """Rewrites, quantises, types and saves a graph (`model` is changed).

    Args:
        name: stem of the files written to `directory`: NAME.onnx and NAME.data.

    Raises:
        BuildError: a weight is beyond its type, or statistics are missing.
    """
    graph = model.graph
    rewrites = rewrite(model)
    planned = {linear.name: possible_scheme(linear, recipe) for linear in find_linears(graph)}
    kept = kept_schemes(graph)
    patterns = find_patterns(graph, planned | kept)
    schemes = quantize_graph(model, recipe, statistics) | kept
    node_types = recipe.node_types(graph)
    cast_floats(model, recipe.float_type, node_types=node_types, fp32_outputs=fp32_outputs, fp32_inputs=fp32_inputs)
    drop_unused_weights(graph)
    typed = {layer: scheme for layer, scheme in schemes.items() if layer not in node_types}
    patterns += find_quantized_patterns(graph, typed, TENSORRT_FLOATS[recipe.float_type])
    patterns += find_islands(node_types)
    path = directory / f"{name}.onnx"
    ir.save(model, path, external_data=f"{name}.data")
    operators = {node.name or "": node.op_type for node in graph}
    return PreparedGraph(path, tuple(patterns), operators, schemes, rewrites)
