"""How a kernel is launched, apart from what it computes: just in time, from a cubin, or only recorded.

An operator's launcher calls `launcher(kernel, grid, args, constexprs)` and nothing else. What must be compiled ahead
of time is found by running the operators with `RecordingLauncher` on meta tensors, so the catalogue of cubins cannot
drift from what is launched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch

from trtdecode.kernels import language

Constexprs = Mapping[str, bool | int | float | str]
Grid = tuple[int, int, int]

#: torch's types in the words of a triton-lang signature.
_POINTER_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
}
#: Pointers must be aligned to this and so may be loaded in 16-byte pieces; torch aligns allocations to 512.
POINTER_ALIGNMENT = 16


@dataclass(frozen=True)
class Kernel:
    """A triton-lang function and how many warps and pipeline stages it runs with.

    Integer arguments whose name ends in `_stride` are compiled as multiples of 16 when they are (wide loads); no other
    argument's value changes the code. `fp8` names the constexpr values for which the code needs SM 89.
    """

    name: str
    function: Any
    num_warps: int
    num_stages: int = 2

    @cached_property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the run-time arguments, in order; constexpr ones (capitals) left out."""
        function = getattr(self.function, "fn", self.function)
        return tuple(name for name in inspect.signature(function).parameters if not name.isupper())


@dataclass(frozen=True)
class Variant:
    """One compilation of a kernel: everything that changes its code, except the SM."""

    kernel: str
    types: tuple[str, ...]  # one a run-time argument: "*fp16", "i32", "i32:16" (a multiple of 16), "fp32"
    constexprs: tuple[tuple[str, bool | int | float | str], ...]  # sorted by name
    num_warps: int
    num_stages: int

    @property
    def key(self) -> str:
        """The name a cubin is looked up by; readable on purpose."""
        constants = ",".join(f"{name}={value}" for name, value in self.constexprs)
        return f"{self.kernel}({','.join(self.types)})<{constants}>w{self.num_warps}s{self.num_stages}"

    @property
    def uses_fp8(self) -> bool:
        """Whether the code needs SM 89 or later."""
        return any("fp8" in kind for kind in self.types)


class Launcher(Protocol):
    """Launches kernels on the current stream."""

    def __call__(self, kernel: Kernel, grid: Grid, args: Sequence[Any], constexprs: Constexprs) -> None:
        """`args` in the kernel's order without the constexprs: tensors, ints and floats."""
        ...


def variant_of(kernel: Kernel, args: Sequence[Any], constexprs: Constexprs) -> Variant:
    """What would have to be compiled for this call."""
    names = kernel.argument_names
    assert len(names) == len(args), f"{kernel.name} takes {len(names)} arguments {names}, got {len(args)}"
    types = tuple(_type_of(name, value) for name, value in zip(names, args, strict=True))
    return Variant(kernel.name, types, tuple(sorted(constexprs.items())), kernel.num_warps, kernel.num_stages)


def _type_of(name: str, value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{_POINTER_TYPES[value.dtype]}"
    if isinstance(value, float):
        return "fp32"
    return "i32:16" if name.endswith("_stride") and value % 16 == 0 else "i32"


class JitLauncher:
    """Compiles at first use (CUDA tensors), or interprets (CPU tensors, TRITON_INTERPRET=1)."""

    def __init__(self) -> None:
        language.require("compile kernels at run time")

    def __call__(self, kernel: Kernel, grid: Grid, args: Sequence[Any], constexprs: Constexprs) -> None:
        options: dict[str, Any] = {
            "num_warps": kernel.num_warps,
            "num_stages": kernel.num_stages,
            "enable_fp_fusion": True,
        }
        kernel.function[grid](*args, **constexprs, **options)


@dataclass
class RecordingLauncher:
    """Launches nothing and keeps what would be compiled, once each, in order of first use."""

    variants: dict[str, tuple[Kernel, Variant]] = field(default_factory=dict)
    on_launch: Callable[[Variant, Grid], None] | None = None

    def __call__(self, kernel: Kernel, grid: Grid, args: Sequence[Any], constexprs: Constexprs) -> None:
        variant = variant_of(kernel, args, constexprs)
        self.variants.setdefault(variant.key, (kernel, variant))
        if self.on_launch is not None:
            self.on_launch(variant, grid)


def next_power_of_2(value: int) -> int:
    """The smallest power of two that is at least `value` (> 0)."""
    return 1 << (value - 1).bit_length()
