"""Finds the matmuls of a graph whose right side is a stored weight: what quantisation works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from trtbuild.rewrite.coded_gemm import KEEP_FLOAT, NUM_COPIES

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """y = x W^T (+ b), as a `Gemm` with W stored [out, in] or a `MatMul` with W stored [in, out]."""

    node: ir.Node
    is_out_in: bool  # how the weight lies in memory

    @property
    def name(self) -> str:
        return self.node.name or ""

    @property
    def input(self) -> ir.Value:
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def weight(self) -> ir.Value:
        value = self.node.inputs[1]
        assert value is not None
        return value

    @property
    def output_axis(self) -> int:
        """The stored weight's axis that numbers output channels: where per-channel scales go (never ONNX's default)."""
        return 0 if self.is_out_in else 1

    @property
    def num_in(self) -> int:
        assert self.weight.shape is not None
        return int(self.weight.shape[1 - self.output_axis])

    @property
    def num_out(self) -> int:
        assert self.weight.shape is not None
        return int(self.weight.shape[self.output_axis])

    def array(self) -> Float32:
        """The weight as float32 [out, in]."""
        assert self.weight.const_value is not None
        return self.oriented(np.asarray(self.weight.const_value.numpy(), np.float32))

    def oriented(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[out, in] to the stored orientation, or back: the same transpose."""
        return array if self.is_out_in else np.ascontiguousarray(array.T)


def find_linears(graph: ir.Graph) -> list[Linear]:
    """In graph order: matmuls of a rank-2 weight that is an initializer or (a tied embedding) a static graph input."""
    found = []
    for node in graph:
        linear = _as_linear(node)
        if linear is not None:
            found.append(linear)
    return found


def _as_linear(node: ir.Node) -> Linear | None:
    if node.domain or node.op_type not in ("MatMul", "Gemm") or KEEP_FLOAT in node.metadata_props:
        return None
    weight = node.inputs[1]
    if weight is None or weight.shape is None or weight.shape.rank() != 2 or not _is_stored(weight):
        return None
    if node.op_type == "MatMul":
        return Linear(node, is_out_in=False)
    attributes = node.attributes
    plain = attributes.get_float("alpha", 1.0) == attributes.get_float("beta", 1.0) == 1.0
    if not plain or attributes.get_int("transA", 0):
        return None
    return Linear(node, is_out_in=bool(attributes.get_int("transB", 0)))


def _is_stored(value: ir.Value) -> bool:
    assert value.shape is not None
    return bool(value.is_initializer() or (value.is_graph_input() and value.shape.is_static()))


#: Scheme of a matmul whose weight comes quantised, by the type of its codes.
_KEPT = {ir.DataType.INT4: "int4", ir.DataType.INT8: "int8", ir.DataType.FLOAT8E4M3FN: "fp8"}


def kept_schemes(graph: ir.Graph) -> dict[str, str]:
    """Schemes of the matmuls that a graph brings along quantised (imported codes, quantisation-aware training).

    "int4_pair" is one over two halves of wider codes (quantize/signed_codes.py).
    """
    found = {}
    for node in graph:
        weight = node.inputs[1].producer() if node.op_type in ("MatMul", "Gemm") and node.inputs[1] else None
        if weight is None or weight.op_type != "DequantizeLinear" or weight.inputs[0] is None:
            continue
        scheme = _KEPT.get(weight.inputs[0].dtype or ir.DataType.UNDEFINED)
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        has_quantized_input = source is not None and source.op_type == "DequantizeLinear"
        if int(node.metadata_props.get(NUM_COPIES, "1")) > 1:
            scheme = "int4_pair"
        if scheme is not None:
            found[node.name or ""] = "int8_weight" if scheme == "int8" and not has_quantized_input else scheme
    return found
