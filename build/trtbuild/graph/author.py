"""Checkpoint -> one ONNX file with external data."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
from trtdecode.errors import UnsupportedError

from trtbuild.checkpoint import Checkpoint
from trtbuild.graph.builder import IR_VERSION, GraphBuilder
from trtbuild.graph.config import DecoderConfig
from trtbuild.graph.family import ModelConfig
from trtbuild.graph.registry import family_of
from trtbuild.graph.weight_file import WeightFile, write_model
from trtbuild.quantize.int8 import DEFAULT_GROUP_SIZE

#: Storage of matrices; "int4" needs a checkpoint that is stored in 4 bits.
PRECISIONS = ("f32", "int8", "int4")


def config_of(checkpoint: Checkpoint) -> ModelConfig:
    """The checkpoint's config as its family reads it. Raises CheckpointError or UnsupportedError."""
    family = family_of(checkpoint.config)
    return family.read_config(family.name, checkpoint.config)


def config_for_rank(config: ModelConfig, tensor_rank: int, tensor_parallel_size: int) -> DecoderConfig:
    """One rank's part of a decoder. Raises UnsupportedError where it does not divide, and for encoders."""
    if not isinstance(config, DecoderConfig):
        raise UnsupportedError(
            f"tensor_parallel_size {tensor_parallel_size}: {config.family} is an encoder; only decoders are split"
        )
    return config.for_rank(tensor_rank, tensor_parallel_size)


def author_graph(
    checkpoint: Checkpoint,
    path: Path,
    precision: str,
    *,
    group_size: int = DEFAULT_GROUP_SIZE,
    tensor_rank: int = 0,
    tensor_parallel_size: int = 1,
) -> None:
    """Writes `path` (.onnx) and `path` + ".data" beside it, streaming the weights.

    `group_size` weights share a scale where a matrix is quantised here; 0: those of a whole row. With
    `tensor_parallel_size` > 1 it is the part of one rank, with an AllReduce after each attention and MLP.

    Raises:
        CheckpointError: a tensor is missing, misshapen, damaged or of a type that cannot be read.
        UnsupportedError: the precision is not one of PRECISIONS, the config asks for something not built, or the model
            does not divide by the number of ranks.
    """
    if precision not in PRECISIONS:
        raise UnsupportedError(f"precision {precision!r} cannot be authored; choose one of {', '.join(PRECISIONS)}")
    config = config_of(checkpoint)
    if tensor_parallel_size > 1:
        config = config_for_rank(config, tensor_rank, tensor_parallel_size)
    with WeightFile(path.with_name(f"{path.name}.data")) as file:
        g = GraphBuilder(f"{config.family}-{precision}", checkpoint.weights, file, precision, group_size)
        family_of(checkpoint.config).write(g, config)  # type: ignore[arg-type]  # a family reads its own kind
    if precision == "int4" and not g.num_packed:
        raise UnsupportedError(
            f"precision int4: {checkpoint.source} stores no matrix in 4-bit codes that can be kept; import it as int8, "
            "or quantise engines with `trtdecode build`"
        )
    write_model(ir.Model(g.graph, ir_version=IR_VERSION, producer_name="trtbuild"), path)
