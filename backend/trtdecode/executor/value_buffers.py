"""Device memory of the named values of a pass: fixed addresses, shared where lives do not overlap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtdecode.executor.engine_steps import EngineStep, EngineSteps, GatherStep, RowsStep, SeamStep, Step, TensorSpec

if TYPE_CHECKING:
    import torch

    from trtdecode.executor.cuda_device import Device

_ALIGNMENT = 256  # bytes: what TensorRT and 16-byte kernel loads ask for, rounded up to cudaMalloc's own


def torch_type(name: str) -> torch.dtype:
    """torch's type of a `TensorSpec.dtype`."""
    import torch

    return {
        "f32": torch.float32,
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8": torch.float8_e4m3fn,
        "i8": torch.int8,
        "i32": torch.int32,
        "i64": torch.int64,
    }[name]


def resolve(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape with its dynamic dimensions filled in."""
    return tuple(sizes[size] if isinstance(size, str) else size for size in spec.shape)


def reads_of(step: Step) -> tuple[str, ...]:
    """Values that a step reads (tables and graph inputs among them)."""
    match step:
        case GatherStep():
            return (step.indices,)
        case RowsStep():
            return (step.input,)
        case EngineStep() | SeamStep():
            return step.inputs


def writes_of(step: Step) -> tuple[str, ...]:
    """Values that a step writes."""
    return step.outputs if isinstance(step, EngineStep) else (step.output,)


class ValueBuffers:
    """Where each value lies. A view's address depends on its name alone.

    Args:
        max_tokens, max_rows: the largest T and S.
    """

    def __init__(self, device: Device, steps: EngineSteps, *, max_tokens: int, max_rows: int) -> None:
        import torch

        self._steps = steps
        self._limits = {"T": max_tokens, "S": max_rows}
        places, size = self._plan()
        self.num_bytes = size
        self._memory = device.allocate((size,), torch.uint8)
        self._full = {
            name: self._memory[begin : begin + length].view(torch_type(steps.tensors[name].dtype))
            for name, (begin, length) in places.items()
        }

    def view(self, name: str, num_tokens: int, num_rows: int) -> torch.Tensor:
        """The value in a pass of T tokens and S logit rows."""
        shape = resolve(self._steps.tensors[name], {"T": num_tokens, "S": num_rows})
        return self._full[name][: math.prod(shape)].view(shape)

    def address(self, name: str) -> int:
        return int(self._full[name].data_ptr())

    def __contains__(self, name: str) -> bool:
        return name in self._full

    def _num_bytes(self, name: str) -> int:
        spec = self._steps.tensors[name]
        return math.prod(resolve(spec, self._limits)) * int(torch_type(spec.dtype).itemsize)

    def _plan(self) -> tuple[dict[str, tuple[int, int]], int]:
        """(offset, bytes) of each value and the bytes of all: first fit among the places whose values are dead."""
        last_use = {name: index for index, step in enumerate(self._steps.steps) for name in reads_of(step)}
        last_use[self._steps.output] = len(self._steps.steps)
        places: dict[str, tuple[int, int]] = {}
        live: dict[str, tuple[int, int]] = {}
        size = 0
        for index, step in enumerate(self._steps.steps):
            # A step's inputs are still read while its outputs are written: they die after it.
            for name in writes_of(step):
                num_bytes = self._num_bytes(name)
                begin = _first_gap(sorted(live.values()), num_bytes)
                places[name] = live[name] = (begin, num_bytes)
                size = max(size, begin + num_bytes)
            for name in [name for name in live if last_use.get(name, index) <= index]:
                del live[name]
        return places, max(size, 1)


def _first_gap(taken: list[tuple[int, int]], num_bytes: int) -> int:
    """The lowest aligned offset with `num_bytes` free; `taken` is sorted."""
    begin = 0
    for start, length in taken:
        if begin + num_bytes <= start:
            return begin
        begin = max(begin, -(-(start + length) // _ALIGNMENT) * _ALIGNMENT)
    return begin
