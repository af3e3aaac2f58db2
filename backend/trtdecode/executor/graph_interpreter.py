"""Runs an `OnnxGraph` node by node in torch: the slow, readable reference, and the way to CUDA without TensorRT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trtdecode.errors import UnsupportedError
from trtdecode.executor.onnx_graph import Array, Node, OnnxGraph
from trtdecode.executor.torch_operators import OPERATORS

#: Inputs that say a shape, by operator: read on the host in every run, so they stay there. On a GPU each read would
#: wait for the device, and none is allowed while a CUDA graph is captured.
_HOST_INPUTS = {
    "Reshape": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "Expand": (1,),
    "Split": (1,),
    "ReduceMean": (1,),
    "ReduceSum": (1,),
    "ReduceMax": (1,),
    "ReduceL2": (1,),
    "Slice": (1, 2, 3, 4),
}

#: onnx.TensorProto types that `Cast` may ask for. FLOAT means the interpreter's compute dtype.
_CAST_TYPES = {6: torch.int32, 7: torch.int64, 9: torch.bool}
_FLOAT_TYPES = (1, 10, 16)  # FLOAT, FLOAT16, BFLOAT16

Observer = Callable[[str, Tensor], None]
SeamOperator = Callable[..., Tensor]  # called with (node, *inputs)


class GraphInterpreter:
    """A graph with its weights on a device.

    Every float in the graph is held and computed in `dtype`. What depends on weights alone (dequantisation,
    transposes, RoPE tables) is computed once here, so quantised weights take the room of unquantised ones.

    Args:
        seam_operators: what runs the operators that are not ONNX's own, by `domain::type`.

    Raises:
        UnsupportedError: listing every operator that is not in the table, with the nodes that use it.
    """

    def __init__(
        self,
        graph: OnnxGraph,
        *,
        device: torch.device,
        dtype: torch.dtype,
        seam_operators: Mapping[str, SeamOperator],
    ) -> None:
        self._device = device
        self._dtype = dtype
        self._outputs = graph.outputs
        self._seam_operators = seam_operators
        self._check_operators(graph)
        self._constants: dict[str, Tensor | None] = {"": None}
        with torch.inference_mode():
            for name, array in graph.weights.items():
                self._constants[name] = self._to_device(array)
            self._nodes = self._fold_constants(graph)
            self._keep_shapes_on_host()
        self._last_uses = self._find_last_uses()

    def run(self, feeds: Mapping[str, Tensor], observer: Observer | None = None) -> dict[str, Tensor]:
        """The graph's outputs for these inputs, by name. A value is freed after its last use.

        Args:
            observer: called with the name of every computed value and the value (calibration).
        """
        values: dict[str, Tensor | None] = {**self._constants, **feeds}
        with torch.inference_mode():
            for node, finished in zip(self._nodes, self._last_uses, strict=True):
                self._run_node(node, values)
                if observer is not None:
                    _report(node, values, observer)
                for name in finished:
                    del values[name]
        return {name: value for name in self._outputs if (value := values[name]) is not None}

    def _run_node(self, node: Node, values: dict[str, Tensor | None]) -> None:
        inputs = [values[name] for name in node.inputs]
        if node.operator in self._seam_operators:
            results: Tensor | tuple[Tensor, ...] = self._seam_operators[node.operator](node, *inputs)
        elif node.op_type == "Cast":
            results = self._cast(node, inputs)
        elif node.op_type == "Constant":
            results = self._to_device(_constant_value(node))
        else:
            results = OPERATORS[node.op_type](node.attributes, *inputs)
        results = results if isinstance(results, tuple) else (results,)
        values.update(zip(node.outputs, results, strict=False))  # trailing outputs may be absent

    def _cast(self, node: Node, inputs: list[Tensor | None]) -> Tensor:
        target = node.attributes["to"]
        (data,) = inputs
        assert data is not None
        return data.to(self._dtype if target in _FLOAT_TYPES else _CAST_TYPES[target])

    def _to_device(self, array: Array) -> Tensor:
        if array.dtype.name == "bfloat16":  # ml_dtypes'; torch does not take it from numpy
            tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array)
        return tensor.to(self._device, self._dtype if tensor.is_floating_point() else tensor.dtype)

    def _check_operators(self, graph: OnnxGraph) -> None:
        unknown: dict[str, list[str]] = {}
        for node in graph.nodes:
            known = node.operator in self._seam_operators or node.operator in (*OPERATORS, "Cast", "Constant")
            if known and node.operator == "Cast":
                known = node.attributes["to"] in (*_CAST_TYPES, *_FLOAT_TYPES)
            if not known:
                unknown.setdefault(node.operator, []).append(node.name)
        if unknown:
            listed = "; ".join(f"{operator} ({', '.join(names)})" for operator, names in sorted(unknown.items()))
            raise UnsupportedError(
                f"{graph.path}: the torch executor has no operator {listed}; "
                "add it to executor/torch_operators.py or serve with executor openvino"
            )

    def _fold_constants(self, graph: OnnxGraph) -> tuple[Node, ...]:
        """Runs the nodes that depend on weights alone; drops the weights that nothing needs any more."""
        left: list[Node] = []
        for node in graph.nodes:
            if node.operator not in self._seam_operators and all(name in self._constants for name in node.inputs):
                self._run_node(node, self._constants)
            else:
                left.append(node)
        needed = {name for node in left for name in node.inputs} | set(self._outputs) | {""}
        self._constants = {name: value for name, value in self._constants.items() if name in needed}
        return tuple(left)

    def _keep_shapes_on_host(self) -> None:
        """Moves the constants that only say shapes back to the host."""
        on_host: set[str] = set()
        on_device: set[str] = set()
        for node in self._nodes:
            for place, name in enumerate(node.inputs):
                (on_host if place in _HOST_INPUTS.get(node.op_type, ()) else on_device).add(name)
        for name in on_host - on_device:
            constant = self._constants.get(name)
            if constant is not None:
                self._constants[name] = constant.cpu()

    def _find_last_uses(self) -> tuple[tuple[str, ...], ...]:
        """For each node, the computed values that no later node reads."""
        kept = {*self._constants, *self._outputs}
        finished: list[tuple[str, ...]] = []
        for node in reversed(self._nodes):
            names = {*node.inputs, *node.outputs} - kept - {""}
            finished.append(tuple(names))
            kept |= names
        return tuple(reversed(finished))


def _report(node: Node, values: Mapping[str, Tensor | None], observer: Observer) -> None:
    for name in node.outputs:
        value = values.get(name)
        if value is not None:
            observer(name, value)


def _constant_value(node: Node) -> Array:
    attributes: Mapping[str, Any] = node.attributes
    if "value" in attributes:
        return np.array(attributes["value"])
    ((name, value),) = attributes.items()
    return np.array(value, np.float32 if "float" in name else np.int64)
