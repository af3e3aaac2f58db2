"""Applies a recipe to one stateless float32 graph: every linear layer gets its scheme."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from trtdecode.errors import BuildError

from trtbuild.quantize import fp8, int4, int8, qdq
from trtbuild.quantize.float_types import drop_unused_weights
from trtbuild.quantize.gptq import gptq_quantize
from trtbuild.quantize.linears import Linear, find_linears
from trtbuild.quantize.own_scales import input_scale, weight_scales
from trtbuild.quantize.recipe import Recipe
from trtbuild.quantize.smoothquant import smoothing_factors
from trtbuild.quantize.statistics import InputStatistics

Float32 = npt.NDArray[np.float32]
Statistics = Mapping[str, InputStatistics]  # by the name of the value that enters the matmul

_NORMS = ("LayerNormalization", "RMSNormalization")


@dataclass(frozen=True, slots=True)
class _InputType:
    """A type that inputs are quantised to, with one scale for the whole value."""

    dtype: ir.DataType
    largest: float
    round: Callable[[Float32], npt.NDArray[Any]]

    def error(self, rows: Float32, scale: float, factors: Float32 | None) -> float:
        """What quantisation costs the median row: |q(x) - x|^2 / |x|^2.

        In most language models a few tokens have inputs a hundred times larger than the rest ("massive activations",
        https://arxiv.org/abs/2402.17762). One scale for all then rounds every other token's input to almost nothing.
        """
        rows = rows if factors is None else rows / factors
        energy = np.square(rows).sum(axis=1)
        live = energy > 0
        if not live.any():
            return 0.0
        rounded = self.round(rows[live] / np.float32(scale)).astype(np.float32) * np.float32(scale)
        return float(np.median(np.square(rounded - rows[live]).sum(axis=1) / energy[live]))


_INPUT_TYPES = {
    "fp8": _InputType(ir.DataType.FLOAT8E4M3FN, fp8.MAX_VALUE, fp8.to_fp8),
    "int8": _InputType(ir.DataType.INT8, 127.0, lambda values: np.clip(np.rint(values), -128, 127)),
}


def quantize_graph(model: ir.Model, recipe: Recipe, statistics: Statistics) -> dict[str, str]:
    """Changes `model` in place; floats stay float32 (see float_types.py for the rest).

    Returns:
        The scheme of every linear layer, by node name.

    Raises:
        BuildError: a layer needs statistics that were not collected, or a weight is not finite.
    """
    graph = model.graph
    schemes: dict[str, str] = {}
    for linears in _by_input(graph):
        scheme_of = {linear: possible_scheme(linear, recipe) for linear in linears}
        for scheme in dict.fromkeys(scheme_of.values()):
            members = [linear for linear in linears if scheme_of[linear] == scheme]
            settled = _quantize_layers(graph, members, scheme, recipe, statistics)
            schemes |= {linear.name: settled for linear in members}
    drop_unused_weights(graph)
    return schemes


def _by_input(graph: ir.Graph) -> list[list[Linear]]:
    """Layers over the same value together: they share factors and the quantised input."""
    groups: dict[ir.Value, list[Linear]] = {}
    for linear in find_linears(graph):
        if linear.weight.const_value is not None:  # a tied table is an input here; see engine/tables.py
            groups.setdefault(linear.input, []).append(linear)
    return list(groups.values())


def possible_scheme(linear: Linear, recipe: Recipe) -> str:
    """INT4 wants whole groups of input channels; a layer without them takes the next wider weights."""
    scheme = recipe.scheme_of(linear)
    return "int8_weight" if scheme == "int4" and int4.group_size_for(linear.num_in) is None else scheme


def _quantize_layers(
    graph: ir.Graph, linears: list[Linear], scheme: str, recipe: Recipe, statistics: Statistics
) -> str:
    """Quantises layers that share an input; returns the scheme that they got."""
    if scheme == "float":
        return scheme
    weights = {linear: _checked_array(linear) for linear in linears}
    inputs = statistics.get((linears[0].input.name or "").removesuffix(".rows"))
    own = input_scale([linear.node for linear in linears]) if scheme in _INPUT_TYPES else None
    if own is not None:
        return _quantize_as_trained(graph, weights, scheme, own)
    if inputs is None and (scheme in ("fp8", "int8") or (scheme == "int4" and recipe.int4_method != "rtn")):
        raise BuildError(
            f"{linears[0].name!r} needs statistics of {linears[0].input.name!r}; calibrate the graph first"
        )
    factors = _balance(weights, scheme, recipe, inputs)
    if scheme in _INPUT_TYPES:
        assert inputs is not None
        input_type = _INPUT_TYPES[scheme]
        scale = _input_scale(inputs, recipe, factors, input_type.largest)
        if input_type.error(inputs.sample, scale, factors) > recipe.max_input_error:
            return _quantize_layers(graph, linears, "int8_weight", recipe, statistics)
    if factors is not None:
        _divide_input(graph, linears, factors)
    if scheme in _INPUT_TYPES:
        for linear in linears:
            qdq.quantize_input(graph, linear, input_type.dtype, scale)
    for linear, array in weights.items():
        qdq.quantize_weight(graph, linear, _quantize_weight(array, scheme, recipe, inputs, factors))
    return scheme


def _quantize_as_trained(graph: ir.Graph, weights: dict[Linear, Float32], scheme: str, scale: float) -> str:
    """With the checkpoint's own scales: nothing is balanced or judged, it was trained to live with them."""
    for linear, array in weights.items():
        scales = weight_scales(linear.node, linear.num_out)
        if scheme == "fp8":
            rows: fp8.Fp8Rows | int8.Int8Rows = fp8.quantize_rows(array, scales)
        else:
            rows = int8.quantize_rows(array, array.shape[1], None if scales is None else scales[:, None])
        qdq.quantize_input(graph, linear, _INPUT_TYPES[scheme].dtype, scale)
        qdq.quantize_weight(graph, linear, rows)
    return scheme


def _input_scale(inputs: InputStatistics, recipe: Recipe, factors: Float32 | None, largest: float) -> float:
    magnitude = inputs.magnitude(recipe.activation_range, recipe.percentile, factors)
    # An input that was always zero keeps scale 1: zero has a code, a scale of zero has no meaning.
    return magnitude / largest if magnitude > 0 else 1.0


def _quantize_weight(
    weights: Float32, scheme: str, recipe: Recipe, inputs: InputStatistics | None, factors: Float32 | None
) -> int8.Int8Rows | fp8.Fp8Rows | int4.Int4Groups:
    if factors is not None:
        weights = weights * factors
    if scheme == "fp8":
        return fp8.quantize_rows(weights)
    if scheme in ("int8", "int8_weight"):
        return int8.quantize_rows(weights, weights.shape[1])
    group_size = int4.group_size_for(weights.shape[1])
    assert group_size is not None, "such a layer has another scheme"
    if recipe.int4_method == "gptq":
        assert inputs is not None
        return gptq_quantize(weights, inputs.hessian, group_size, act_order=recipe.act_order)
    return int4.quantize_groups(weights, group_size)


def _balance(
    weights: dict[Linear, Float32], scheme: str, recipe: Recipe, inputs: InputStatistics | None
) -> Float32 | None:
    """Factors s that move range between input channels and weights (SmoothQuant, AWQ): x' = x / s, W' = W s.

    None where nothing is gained, or where the input cannot be scaled for free.
    """
    linears = list(weights)
    if inputs is None or not _can_scale_input(linears[0]):
        return None
    stacked = np.concatenate(list(weights.values()))
    if scheme == "int8" and recipe.smoothing > 0:
        factors = smoothing_factors(inputs.channel_absmax, np.abs(stacked).max(axis=0), recipe.smoothing)
    elif scheme == "int4" and recipe.int4_method == "awq":
        group_size = int4.group_size_for(stacked.shape[1])
        assert group_size is not None, "such a layer has another scheme"
        factors = int4.awq_scales(stacked, inputs.sample, group_size)
    else:
        return None
    return None if np.all(factors == 1) else factors


def _can_scale_input(linear: Linear) -> bool:
    """A norm's scale takes the factors; after a pointwise operator a multiplication fuses into its kernel. An input
    that comes from outside the graph (attention) would cost a kernel of its own."""
    producer = linear.input.producer()
    return producer is not None and producer.op_type in (*_NORMS, "Mul", "Gelu", "Swish", "Relu")


def _divide_input(graph: ir.Graph, linears: list[Linear], factors: Float32) -> None:
    source = linears[0].input
    producer = source.producer()
    assert producer is not None
    only_ours = all(user in {linear.node for linear in linears} for user in source.consumers())
    if producer.op_type in _NORMS and only_ours and not source.is_graph_output():
        for index in (1, 2):
            value = producer.inputs[index] if index < len(producer.inputs) else None
            if value is not None:
                assert value.const_value is not None
                qdq.replace_weight(graph, producer, index, value.const_value.numpy() / factors)
        return
    scaled = qdq.scale_input(graph, source, 1 / factors, before=linears[0].node)
    for linear in linears:
        linear.node.replace_input_with(0, scaled)


def _checked_array(linear: Linear) -> Float32:
    array = linear.array()
    if not np.isfinite(array).all():
        raise BuildError(f"weight {linear.weight.name!r} of {linear.name!r} is not finite; the checkpoint is damaged")
    return array
