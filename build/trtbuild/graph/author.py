"""Checkpoint -> one ONNX file with external data."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import onnx_ir as ir
from trtdecode.errors import UnsupportedError

from trtbuild.checkpoint import Checkpoint
from trtbuild.graph.builder import IR_VERSION, GraphBuilder
from trtbuild.graph.family import ModelConfig
from trtbuild.graph.registry import family_of
from trtbuild.graph.weight_file import WeightFile

#: Storage of matrices; "int4" needs a checkpoint that is stored in 4 bits.
PRECISIONS = ("f32", "int8", "int4")


def config_of(checkpoint: Checkpoint) -> ModelConfig:
    """The checkpoint's config as its family reads it. Raises CheckpointError or UnsupportedError."""
    family = family_of(checkpoint.config)
    return family.read_config(family.name, checkpoint.config)


def author_graph(checkpoint: Checkpoint, path: Path, precision: str) -> None:
    """Writes `path` (.onnx) and `path` + ".data" beside it, streaming the weights.

    Raises:
        CheckpointError: a tensor is missing, misshapen, damaged or of a type that cannot be read.
        UnsupportedError: the precision is not one of PRECISIONS, or the config asks for something not built.
    """
    if precision not in PRECISIONS:
        raise UnsupportedError(f"precision {precision!r} cannot be authored; choose one of {', '.join(PRECISIONS)}")
    config = config_of(checkpoint)
    with WeightFile(path.with_name(f"{path.name}.data")) as file:
        g = GraphBuilder(f"{config.family}-{precision}", checkpoint.weights, file, precision)
        family_of(checkpoint.config).write(g, checkpoint.config)
    if precision == "int4" and not g.num_packed:
        raise UnsupportedError(
            f"precision int4: {checkpoint.source} stores no matrix in 4-bit codes that can be kept; import it as int8, "
            "or quantise engines with `trtdecode build`"
        )
    model = ir.Model(g.graph, ir_version=IR_VERSION, producer_name="trtbuild")
    _write_proto(ir.to_proto(model), path)


def _write_proto(proto: onnx.ModelProto, path: Path) -> None:
    with path.open("wb") as file:
        file.write(proto.SerializeToString())
        file.flush()
        os.fsync(file.fileno())
