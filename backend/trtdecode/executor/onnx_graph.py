"""Reads a decoder graph: nodes as plain data, weights as arrays mapped from the external data file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtdecode.errors import ManifestError
from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.base import OPERATOR_DOMAIN

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. An absent optional input is the empty string, as in ONNX."""

    op_type: str
    domain: str  # "" is ONNX's own
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]  # int, float, str, list of those, or numpy array

    @property
    def operator(self) -> str:
        """`MatMul`, or `trtdecode::PagedAttention` outside ONNX's own domain."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A graph in execution order."""

    path: Path
    nodes: tuple[Node, ...]
    weights: Mapping[str, Array]
    inputs: tuple[str, ...]  # without the weights
    outputs: tuple[str, ...]

    @property
    def attention_nodes(self) -> tuple[Node, ...]:
        """The paged attention of each layer, in order."""
        return tuple(node for node in self.nodes if node.operator == f"{OPERATOR_DOMAIN}::PagedAttention")


def attention_specs(graph: OnnxGraph) -> dict[str, AttentionSpec]:
    """The attributes of each layer's attention, by node name, in order of layers."""
    return {node.name: AttentionSpec.from_attributes(node.attributes, node.name) for node in graph.attention_nodes}


def read_graph(path: Path) -> OnnxGraph:
    """Reads the graph at `path`; weights stay on disk until they are touched.

    Raises:
        ManifestError: the file or its external data is missing, truncated or not ONNX.
    """
    import onnx

    try:
        graph = onnx.load(str(path), load_external_data=False).graph
    except FileNotFoundError:
        raise ManifestError(f"{path}: not found; import the model again") from None
    except Exception as error:  # protobuf's DecodeError, whose module has no types
        raise ManifestError(f"{path}: not an ONNX file ({error}); import the model again") from error
    weights = {tensor.name: _array_of(tensor, path) for tensor in graph.initializer}
    return OnnxGraph(
        path=path,
        nodes=tuple(_node_of(node) for node in graph.node),
        weights=weights,
        inputs=tuple(value.name for value in graph.input if value.name not in weights),
        outputs=tuple(value.name for value in graph.output),
    )


def _node_of(node: onnx.NodeProto) -> Node:
    return Node(
        op_type=node.op_type,
        domain="" if node.domain == "ai.onnx" else node.domain,
        name=node.name or node.output[0],
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes={attribute.name: _attribute_value(attribute) for attribute in node.attribute},
    )


def _attribute_value(attribute: onnx.AttributeProto) -> Any:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return value


def _array_of(tensor: onnx.TensorProto, graph_path: Path) -> Array:
    """The array of an initializer. External data is mapped copy-on-write, so that runtimes which insist on writable
    memory take it without copying; 4-bit types are unpacked to one byte a value."""
    import onnx

    four_bit = tensor.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        array: Array = onnx.numpy_helper.to_array(tensor)
        if four_bit:
            return array.astype(np.int8 if tensor.data_type == onnx.TensorProto.INT4 else np.uint8)
        return array.copy()  # protobuf's own memory is read-only
    place = {entry.key: entry.value for entry in tensor.external_data}
    shape = tuple(tensor.dims)
    data_path = graph_path.parent / place["location"]
    offset = int(place.get("offset", 0))
    if four_bit:
        packed = _mapped(data_path, np.dtype(np.uint8), ((int(np.prod(shape)) + 1) // 2,), offset, tensor.name)
        return _unpack_four_bit(packed, shape, signed=tensor.data_type == onnx.TensorProto.INT4)
    return _mapped(data_path, onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type), shape, offset, tensor.name)


def _mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, name: str) -> Array:
    try:
        return np.memmap(path, dtype, mode="c", offset=offset, shape=shape).view(np.ndarray)
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: weight {name!r} is not readable ({error}); import the model again") from error


def _unpack_four_bit(packed: Array, shape: tuple[int, ...], *, signed: bool) -> Array:
    """ONNX packs two 4-bit values a byte, the first in the low half."""
    values: Array = np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(-1)[: int(np.prod(shape))].reshape(shape)
    if signed:
        values = (values ^ 8).astype(np.int8) - np.int8(8)
    return values
