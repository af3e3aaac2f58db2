"""Engines without a GPU: an engine file is an ONNX segment, interpreted in float32 over raw addresses.

Everything that `EnginePass` hands to TensorRT (profiles, shapes, addresses, scratch memory) is used as TensorRT would
use it, so a wrong address or a forgotten shape gives wrong logits or an error.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from conformance.tiny_graph import TinySpec, _Builder, _save
from executor.recording_device import DeviceRuleError
from safetensors.numpy import save_file
from trtbuild.engine.segments import cut, load_graph
from trtdecode.executor.engine_steps import EngineFile, EngineStep, EngineSteps, TensorSpec, TokenProfile, write_steps
from trtdecode.executor.graph_interpreter import GraphInterpreter
from trtdecode.executor.onnx_graph import read_graph
from trtdecode.manifest import sha256_of

_TYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64}
SCRATCH_PER_TOKEN = 100


@dataclass(frozen=True)
class CuttableSpec(TinySpec):
    """The tiny decoder with RoPE as our graph builder writes it: cos and sin are looked up once, outside the engines,
    and every value that crosses segments has T as its first dimension."""

    def write(self, directory: Path) -> Path:
        return _save(directory, self, _CuttableBuilder(self))


class _CuttableBuilder(_Builder):
    def body(self) -> None:
        self.constant("one", [1])
        for name in ("cos", "sin"):
            rows = self.add("Gather", [name, "positions"], f"{name}_rows", axis=0)
            self.add("Unsqueeze", [rows, "one"], f"{name}_heads")  # [T, 1, head_dim / 2]
        super().body()

    def rope(self, name: str, num_heads: int) -> str:
        half = self.spec.head_dim // 2
        shape = self.constant(f"{name}:shape", [0, num_heads, 2 * half])
        sizes = self.constant(f"{name}:sizes", [half, half])
        heads = self.add("Reshape", [name, shape], f"{name}:heads")
        real, imaginary = f"{name}:real", f"{name}:imaginary"
        self.add("Split", [heads, sizes], [real, imaginary], axis=-1)

        def times(value: str, table: str) -> str:
            return self.add("Mul", [value, f"{table}_heads"], f"{value}*{table}")

        turned = [
            self.add("Sub", [times(real, "cos"), times(imaginary, "sin")], f"{name}:turned_real"),
            self.add("Add", [times(real, "sin"), times(imaginary, "cos")], f"{name}:turned_imaginary"),
        ]
        joined = self.add("Concat", turned, f"{name}:turned", axis=-1)
        flat = self.constant(f"{name}:flat", [0, num_heads * 2 * half])
        return self.add("Reshape", [joined, flat], f"{name}:rope")


def write_engine_folder(
    spec: TinySpec,
    directory: Path,
    *,
    max_num_seqs: int = 4,
    max_tokens: int = 32,
    key: Mapping[str, str] | None = None,
) -> tuple[Path, EngineSteps]:
    """`engine_folder_of` a tiny decoder."""
    directory.mkdir(parents=True, exist_ok=True)
    graph = spec.write(directory)
    return engine_folder_of(graph, directory, max_num_seqs=max_num_seqs, max_tokens=max_tokens, key=key)


def engine_folder_of(
    graph: Path, directory: Path, *, max_num_seqs: int = 4, max_tokens: int = 32, key: Mapping[str, str] | None = None
) -> tuple[Path, EngineSteps]:
    """Cuts a graph as `trtdecode build` does and writes its segments as "engines".

    Args:
        key: what `segments.json` says each was built from.
    """
    directory.mkdir(parents=True, exist_ok=True)
    cut_graph = cut(load_graph(graph))
    for segment in cut_graph.segments:
        ir.save(segment.model, directory / f"{segment.name}.onnx", external_data=f"{segment.name}.data")
    tensors = dict(cut_graph.tensors)
    arrays = {name: np.ascontiguousarray(table.numpy()) for name, table in cut_graph.tables.items()}
    tensors |= {name: TensorSpec("f32", array.shape) for name, array in arrays.items()}
    save_file(arrays, directory / "tables.safetensors")
    steps = EngineSteps(
        precision="fp16",
        sm=int((key or {}).get("sm", "90")),
        flavour="tensorrt-rtx",
        builder_version="0",
        source_graph="f32",
        profiles=(TokenProfile("decode", 1, 2, max_num_seqs), TokenProfile("prefill", 1, max_tokens, max_tokens)),
        steps=tuple(
            EngineStep(f"{step.file}.onnx", step.inputs, step.outputs, step.dimension)
            if isinstance(step, EngineStep)
            else step
            for step in cut_graph.steps
        ),
        tensors=tensors,
        output=cut_graph.output,
        engines={
            path.name: EngineFile(sha256_of(path), path.stat().st_size, dict(key or {}))
            for path in sorted(directory.glob("segment_*.onnx"))
        },
    )
    write_steps(directory, steps)
    return directory, steps


@dataclass
class FakeContext:
    """See `tensorrt_runtime.Context`."""

    engine: FakeEngine
    profile: int = 0
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    scratch: tuple[int, int] = (0, 0)
    is_captured: bool = False

    @property
    def signature(self) -> str:
        return f"{self.engine.name} profile {self.profile} {sorted(self.shapes.items())}"

    @property
    def num_rows(self) -> int:
        return max((shape[-1] if len(shape) == 1 else shape[0] for shape in self.shapes.values()), default=1)

    def set_shapes(self, profile: int, shapes: Mapping[str, tuple[int, ...]], stream: int) -> None:
        if self.is_captured:
            raise DeviceRuleError(f"{self.signature}: a captured context got new shapes")
        assert set(shapes) == set(self.engine.dynamic_inputs), (shapes, self.engine.dynamic_inputs)
        self.profile, self.shapes = profile, dict(shapes)

    def memory_bytes(self) -> int:
        return SCRATCH_PER_TOKEN * self.num_rows

    def set_memory(self, address: int, num_bytes: int) -> None:
        self.scratch = (address, num_bytes)

    def set_addresses(self, addresses: Mapping[str, int]) -> None:
        if self.is_captured:
            raise DeviceRuleError(f"{self.signature}: a captured context got new addresses")
        self.addresses.update(addresses)

    def is_capturable(self, stream: int) -> bool:
        return self.engine.capturable

    def enqueue(self, stream: int) -> None:
        address, num_bytes = self.scratch
        assert address % 16 == 0 and num_bytes >= self.memory_bytes(), "scratch memory is missing or too small"
        self.engine.run(self)


class FakeEngine:
    """See `tensorrt_runtime.Engine`."""

    num_profiles = 2

    def __init__(self, path: Path, capturable: bool) -> None:
        self.name = path.name
        self.capturable = capturable
        model = onnx.load(str(path), load_external_data=False).graph
        weights = {weight.name for weight in model.initializer}
        self._dims = {value.name: _dims_of(value) for value in (*model.input, *model.output)}
        self._dtypes = {value.name: _TYPES[value.type.tensor_type.elem_type] for value in (*model.input, *model.output)}
        self._inputs = [value.name for value in model.input if value.name not in weights]
        self._outputs = [value.name for value in model.output]
        self.dynamic_inputs = [name for name in self._inputs if any(isinstance(d, str) for d in self._dims[name])]
        self._graph = GraphInterpreter(
            read_graph(path), device=torch.device("cpu"), dtype=torch.float32, seam_operators={}
        )

    def profile_bytes(self, profile: int) -> int:
        return SCRATCH_PER_TOKEN * (4, 32)[profile]

    def create_context(self) -> FakeContext:
        return FakeContext(self)

    def run(self, context: FakeContext) -> None:
        symbols = {
            symbol: size
            for name in self.dynamic_inputs
            for symbol, size in zip(self._dims[name], context.shapes[name], strict=True)
            if isinstance(symbol, str)
        }
        feeds = {name: self._at(context, name, symbols) for name in self._inputs}
        for name, value in self._graph.run(feeds).items():
            with torch.inference_mode():
                self._at(context, name, symbols).copy_(value)

    def _at(self, context: FakeContext, name: str, symbols: Mapping[str, int]) -> torch.Tensor:
        shape = tuple(symbols[size] if isinstance(size, str) else size for size in self._dims[name])
        dtype = self._dtypes[name]
        memory = (ctypes.c_uint8 * (math.prod(shape) * dtype.itemsize)).from_address(context.addresses[name])
        return torch.frombuffer(memory, dtype=dtype).view(shape)


@dataclass
class FakeRuntime:
    """See `tensorrt_runtime.Runtime`."""

    capturable: bool = True
    flavour: str = "tensorrt-rtx"
    version: str = "0"
    num_saves: int = 0

    def load(self, path: Path) -> FakeEngine:
        return FakeEngine(path, self.capturable)

    def save_cache(self) -> None:
        self.num_saves += 1


def _dims_of(value: Any) -> tuple[int | str, ...]:
    return tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)
