"""Builds a small float32 graph in FP16 with the real TensorRT-RTX, and runs graphs with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from trtbuild.engine.engine_from_onnx import EngineRequest, build_engine
from trtbuild.engine.flavour import load_tensorrt
from trtbuild.engine.layer_report import Kernel
from trtbuild.engine.profiles import shape_ranges
from trtbuild.quantize.float_types import cast_floats, drop_unused_weights
from trtdecode.executor.engine_steps import TokenProfile

PROFILE = TokenProfile("decode", 1, 8, 64)


def copy_of(model: ir.Model) -> ir.Model:
    """A deep copy: rules and casts change their model."""
    return ir.from_proto(ir.to_proto(model))


def compile_fp16(model: ir.Model, folder: Path, sm: int = 89) -> tuple[Kernel, ...]:
    """The kernels that run for `model` cast to FP16 (changed in place)."""
    cast_floats(model, "f16")
    drop_unused_weights(model.graph)
    path = folder / "graph.onnx"
    ir.save(model, path)
    request = EngineRequest(path, sm, [shape_ranges(model.graph, PROFILE)])
    kernels = build_engine(load_tensorrt("tensorrt-rtx"), request).kernels
    return tuple(kernel for kernel in kernels if kernel.launches)


def run(model: ir.Model, **feeds: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """The first output, on ONNX Runtime without its own rewriting."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    return np.asarray(session.run(None, feeds)[0])


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]
