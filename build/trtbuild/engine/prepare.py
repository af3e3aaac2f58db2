"""One float32 segment -> the strongly typed ONNX file that TensorRT gets, and what to check on the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from trtdecode.errors import BuildError
from trtdecode.executor.base import GRAPH_OUTPUT

from trtbuild.engine.patterns import Pattern, find_islands, find_patterns, find_quantized_patterns
from trtbuild.quantize.float_types import cast_floats, drop_unused_weights
from trtbuild.quantize.linears import find_linears, kept_schemes
from trtbuild.quantize.quantize_graph import Statistics, possible_scheme, quantize_graph
from trtbuild.quantize.recipe import Recipe
from trtbuild.rewrite.rules import INT4_RULES, RULES, rewrite

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
        BuildError: a weight is beyond its type, codes are stored in a form that TensorRT cannot read, or statistics
            are missing.
    """
    graph = model.graph
    rewrites = rewrite(model, RULES + INT4_RULES if recipe.precision == "int4" else RULES)
    _require_readable_codes(graph)
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


def _require_readable_codes(graph: ir.Graph) -> None:
    """TensorRT's own refusals name neither the weight nor what to do."""
    for node in graph:
        codes = node.inputs[0] if node.op_type in ("Cast", "DequantizeLinear") else None
        if codes is None or not codes.is_initializer():
            continue
        if codes.dtype == ir.DataType.UINT4:
            what = "UINT4 codes"
        elif node.op_type == "DequantizeLinear" and codes.dtype == ir.DataType.UINT8:
            what = "UINT8 codes"
        elif node.op_type == "DequantizeLinear" and len(node.inputs) > 2 and not _is_zero(node.inputs[2]):
            what = "codes with zero points"
        else:
            continue
        users = ", ".join(f"{user.op_type} {user.name!r}" for user in node.outputs[0].consumers())
        raise BuildError(
            f"{codes.name}: {what}, which TensorRT cannot read, and {node.op_type} {node.name!r} before {users} is no "
            "form that becomes signed codes (a Gemm over groups of input channels); build from floats: "
            "`trtdecode import --precision f32`, or with --onnx the model as it was before it was quantised"
        )


def _is_zero(zeros: ir.Value | None) -> bool:
    if zeros is None:
        return True
    return zeros.const_value is not None and not np.any(zeros.const_value.numpy().astype(np.float32))
