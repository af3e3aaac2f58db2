"""Cuts an authored decoder into pipeline stages: consecutive layers, each stage a graph and a weight file of its own.

Between two stages flows one value, the hidden states: output `hidden_out` of one, input `hidden_in` of the next. The
first stage has the embedding, the last norm and head. What hangs on the step's inputs alone (rotary tables) is computed
by every stage anew. Layers and caches are numbered from 0 in each.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir
from trtdecode.errors import UnsupportedError
from trtdecode.executor.base import HIDDEN_INPUT, HIDDEN_OUTPUT

from trtbuild.graph.weight_file import WeightFile, write_model

LayerRange = tuple[int, int]  # half-open

_LAYER = re.compile(r"layers\.(\d+)/")
_CACHE = re.compile(r"(key|value)_cache\.(\d+)")


def layer_ranges(num_layers: int, num_stages: int) -> list[LayerRange]:
    """Near-equal stages; the longer ones come first, since the last also has the head.

    Raises:
        UnsupportedError: fewer layers than stages.
    """
    if num_stages > num_layers:
        raise UnsupportedError(
            f"pipeline_parallel_size {num_stages}: the model has {num_layers} layers; use at most as many stages"
        )
    size, longer = divmod(num_layers, num_stages)
    begins = [stage * size + min(stage, longer) for stage in range(num_stages + 1)]
    return list(itertools.pairwise(begins))


def write_stages(path: Path, targets: Sequence[Path], ranges: Sequence[LayerRange], hidden_size: int) -> None:
    """Writes the stages of the graph at `path` to `targets`, each with its ".data" beside it.

    Raises:
        UnsupportedError: more than the hidden states flows from one layer to the next.
    """
    for stage, (target, (begin, end)) in enumerate(zip(targets, ranges, strict=True)):
        model = ir.load(path)  # anew: renaming changes it
        is_last = stage == len(ranges) - 1
        inputs = list(model.graph.inputs)
        entering = None if stage == 0 else _crossing(model.graph, begin)
        leaving = model.graph.outputs[0] if is_last else _crossing(model.graph, end)
        for value in (entering, leaving):
            if value is not None and not value.is_graph_output():  # ONNX asks for the types of inputs and outputs
                value.shape, value.dtype = ir.Shape(["T", hidden_size]), ir.DataType.FLOAT
        kept = [value for value in inputs if not _is_other_cache(value, begin, end)]
        # Inputs that a stage does not use stay declared: every stage has the contract's.
        graph = ir.convenience.extract(model.graph, [*kept, *([] if entering is None else [entering])], [leaving])
        graph.name = model.graph.name
        if entering is not None:
            graph.inputs[-1].name = HIDDEN_INPUT
        if not is_last:
            graph.outputs[0].name = HIDDEN_OUTPUT
        for value in graph.inputs:
            if found := _CACHE.fullmatch(value.name or ""):
                value.name = f"{found[1]}_cache.{int(found[2]) - begin}"
        with WeightFile(target.with_name(f"{target.name}.data")) as file:
            for value in graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    value.const_value = file.append_copy(value.const_value)
        write_model(ir.Model(graph, ir_version=model.ir_version, producer_name="trtbuild"), target)


def _crossing(graph: ir.Graph, border: int) -> ir.Value:
    """The one value that layers before `border` make and layers from `border` on (or the head) use."""
    found: dict[ir.Value, None] = {}
    for node in graph:
        layer = _layer_of(node)
        for value in node.inputs:
            producer = None if value is None else value.producer()
            made = None if producer is None else _layer_of(producer)
            if value is not None and layer is not None and made is not None and made < border <= layer:
                found[value] = None
    if len(found) != 1:
        names = ", ".join(value.name or "" for value in found)
        raise UnsupportedError(
            f"pipeline_parallel_size: {len(found)} values flow into layer {border} ({names}), stages pass on one; use "
            "tensor_parallel_size instead"
        )
    return next(iter(found))


def _layer_of(node: ir.Node) -> int | None:
    """The layer a node belongs to, the head being behind all; None for what every stage may compute itself."""
    name = node.name or ""
    if found := _LAYER.match(name):
        return int(found[1])
    return 1 << 30 if name.startswith("head/") else None


def _is_other_cache(value: ir.Value, begin: int, end: int) -> bool:
    found = _CACHE.fullmatch(value.name or "")
    return found is not None and not begin <= int(found[2]) < end
