"""Checks an authored graph before it is published: cheap, and independent of the code that wrote it."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from trtdecode.errors import LoadError
from trtdecode.executor.base import GRAPH_INPUTS, GRAPH_OUTPUT, HIDDEN_INPUT, HIDDEN_OUTPUT, OPERATOR_DOMAIN
from trtdecode.executor.encoder_base import EMBEDDING_OUTPUT, ENCODER_INPUTS, SCORES_OUTPUT
from trtdecode.manifest import ModelSpec

from trtbuild.graph.builder import OPSET_VERSION


class GraphCheckError(LoadError):
    """A graph does not keep the contract; nothing is published."""


def check_graph(path: Path, spec: ModelSpec, *, is_first: bool = True, is_last: bool = True) -> None:
    """Raises GraphCheckError naming the node or tensor that breaks the contract.

    Args:
        spec: of the graph itself: of a stage's layers, of a rank's heads.
        is_first, is_last: which pipeline stage the graph is; a whole decoder is both.

    Checked: the ONNX schema and inferred shapes of every operator; inputs and output by name and order; one
    PagedAttention a layer of a decoder; every DequantizeLinear has an explicit axis (ONNX's default is wrong for
    [out, in] weights and, on square ones, silently so); external data lies inside its file.
    """
    try:
        onnx.checker.check_model(os.fspath(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise GraphCheckError(f"{path}: not a valid ONNX graph: {error}") from error
    model = onnx.load(os.fspath(path), load_external_data=False)
    _check_interface(path, model, spec, is_first=is_first, is_last=is_last)
    for node in model.graph.node:
        _check_node(path, node)
    for tensor in model.graph.initializer:
        _check_extent(path, tensor)


def _check_interface(path: Path, model: onnx.ModelProto, spec: ModelSpec, *, is_first: bool, is_last: bool) -> None:
    wanted_inputs, wanted_output = _contract(spec, is_first=is_first, is_last=is_last)
    inputs = [value.name for value in model.graph.input]
    if inputs != wanted_inputs:
        raise GraphCheckError(f"{path}: inputs are {inputs}, the contract says {wanted_inputs}")
    outputs = [value.name for value in model.graph.output]
    if outputs != [wanted_output]:
        raise GraphCheckError(f"{path}: outputs are {outputs}, the contract says {[wanted_output]}")
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    if opsets.get("") != OPSET_VERSION:
        raise GraphCheckError(f"{path}: opset {opsets.get('')}, the contract says {OPSET_VERSION}")
    attention = [node for node in model.graph.node if node.op_type == "PagedAttention"]
    if len(attention) != (spec.num_layers if spec.task == "generate" else 0):
        raise GraphCheckError(f"{path}: {len(attention)} PagedAttention nodes for {spec.num_layers} layers")


def _contract(spec: ModelSpec, *, is_first: bool, is_last: bool) -> tuple[list[str], str]:
    """Input names in order, and the output's name."""
    if spec.task == "generate":
        caches = [f"{kind}_cache.{layer}" for layer in range(spec.num_layers) for kind in ("key", "value")]
        hidden = [] if is_first else [HIDDEN_INPUT]
        return [*GRAPH_INPUTS, *caches, *hidden], GRAPH_OUTPUT if is_last else HIDDEN_OUTPUT
    return list(ENCODER_INPUTS), EMBEDDING_OUTPUT if spec.task == "embed" else SCORES_OUTPUT


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
