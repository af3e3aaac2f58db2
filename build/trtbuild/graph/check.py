"""Checks an authored graph before it is published: cheap, and independent of the code that wrote it."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from trtdecode.errors import LoadError
from trtdecode.executor.base import GRAPH_INPUTS, GRAPH_OUTPUT, OPERATOR_DOMAIN

from trtbuild.graph.builder import OPSET_VERSION


class GraphCheckError(LoadError):
    """A graph does not keep the contract; nothing is published."""


def check_graph(path: Path, num_layers: int) -> None:
    """Raises GraphCheckError naming the node or tensor that breaks the contract.

    Checked: the ONNX schema and inferred shapes of every operator; inputs and output by name and order; one
    PagedAttention a layer; every DequantizeLinear has an explicit axis (ONNX's default is wrong for [out, in] weights
    and, on square ones, silently so); external data lies inside its file.
    """
    try:
        onnx.checker.check_model(os.fspath(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise GraphCheckError(f"{path}: not a valid ONNX graph: {error}") from error
    model = onnx.load(os.fspath(path), load_external_data=False)
    _check_interface(path, model, num_layers)
    for node in model.graph.node:
        _check_node(path, node)
    for tensor in model.graph.initializer:
        _check_extent(path, tensor)


def _check_interface(path: Path, model: onnx.ModelProto, num_layers: int) -> None:
    caches = [f"{kind}_cache.{layer}" for layer in range(num_layers) for kind in ("key", "value")]
    wanted = [*GRAPH_INPUTS, *caches]
    inputs = [value.name for value in model.graph.input]
    if inputs != wanted:
        raise GraphCheckError(f"{path}: inputs are {inputs}, the contract says {wanted}")
    outputs = [value.name for value in model.graph.output]
    if outputs != [GRAPH_OUTPUT]:
        raise GraphCheckError(f"{path}: outputs are {outputs}, the contract says {[GRAPH_OUTPUT]}")
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    if opsets.get("") != OPSET_VERSION:
        raise GraphCheckError(f"{path}: opset {opsets.get('')}, the contract says {OPSET_VERSION}")
    attention = [node for node in model.graph.node if node.op_type == "PagedAttention"]
    if len(attention) != num_layers:
        raise GraphCheckError(f"{path}: {len(attention)} PagedAttention nodes for {num_layers} layers")


def _check_node(path: Path, node: onnx.NodeProto) -> None:
    if node.domain not in ("", OPERATOR_DOMAIN):
        raise GraphCheckError(
            f"{path}: node {node.name!r} is of domain {node.domain!r}; only ONNX and ours are allowed"
        )
    if node.op_type == "DequantizeLinear" and not any(attribute.name == "axis" for attribute in node.attribute):
        raise GraphCheckError(
            f"{path}: DequantizeLinear {node.name!r} has no explicit axis; set it to the weight's scaled dimension"
        )


def _check_extent(path: Path, tensor: onnx.TensorProto) -> None:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return
    place = {entry.key: entry.value for entry in tensor.external_data}
    data = path.parent / place["location"]
    size = data.stat().st_size if data.is_file() else -1
    if int(place["offset"]) + int(place["length"]) > size:
        raise GraphCheckError(f"{data}: tensor {tensor.name!r} reaches past the end of the file ({size} bytes)")
