"""Reads anybody's stateless ONNX model into the form that the rules and the quantiser work on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass, ShapeInferencePass
from trtdecode.errors import UnsupportedError

from trtbuild.engine.segments import load_graph

#: Swish came with 24, the last operator that a rule writes.
OPSET = 24


def open_onnx(path: Path) -> ir.Model:
    """Loads, raises the opset, names every node, and infers shapes; weights of external data stay on disk.

    Raises:
        ManifestError: missing or not ONNX.
        UnsupportedError: operators that are not ONNX's own, each with its nodes, or an opset that cannot be raised.
    """
    model = load_graph(path)
    _require_own_operators(path, model.graph)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    version = model.graph.opset_imports.get("", 0)
    if version < OPSET:
        _raise_opset(path, model, version)
    used: set[str] = set()
    for index, node in enumerate(model.graph):
        if not node.name or node.name in used:
            node.name = f"{node.op_type}_{index}"
        used.add(node.name)
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    return model


def digest_of(path: Path, model: ir.Model) -> str:
    """One digest of the file and of every external data file that it names."""
    files = {path}
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            files.add(Path(value.const_value.path))
    digest = hashlib.sha256()
    for file in sorted(files):
        with file.open("rb") as content:
            digest.update(f"{file.name}:{hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _require_own_operators(path: Path, graph: ir.Graph) -> None:
    unknown: dict[str, list[str]] = {}
    for node in graph:
        if node.domain not in ("", "ai.onnx"):
            unknown.setdefault(f"{node.domain}::{node.op_type}", []).append(node.name or "?")
    if unknown:
        listed = "; ".join(f"{operator} ({', '.join(names[:5])})" for operator, names in sorted(unknown.items()))
        raise UnsupportedError(
            f"{path.name}: not ONNX's own operators: {listed}; "
            "export without them (a decoder is built as a model version)"
        )


def _raise_opset(path: Path, model: ir.Model, version: int) -> None:
    from onnxscript.version_converter import convert_version

    convert_version(model, target_version=OPSET, fallback=True)
    reached = model.graph.opset_imports.get("", 0)
    if reached != OPSET:
        raise UnsupportedError(
            f"{path.name}: opset {version} cannot be raised to {OPSET} (stopped at {reached}); "
            "export with a newer opset"
        )
