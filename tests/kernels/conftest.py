"""Kernels are interpreted on CPU tensors unless the machine has a GPU; triton-lang reads the variable at decoration.

Four faults of triton-lang 3.9's interpreter are repaired for the tests, since a GPU does not have them: `dot`
multiplies the bit patterns of bf16, f32 -> bf16 truncates, int -> bf16 takes the integer for the bit pattern, and
f32 -> fp8e4nv loses the carry of a rounded mantissa (1.99 becomes 1.0). The repairs use torch's conversions.
"""

import os
from typing import Any

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

import triton.language as tl
from triton.runtime import interpreter
from trtdecode.kernels.launch import JitLauncher, Launcher

_NARROW = {tl.bfloat16: (torch.bfloat16, torch.int16), tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8)}


def _repaired_cast(original: Any) -> Any:
    def cast(self: Any, src: Any, dst_type: Any, *rest: Any) -> Any:
        target = _NARROW.get(dst_type.scalar)
        if target is None or not (src.dtype.scalar == tl.float32 or src.dtype.scalar.is_int()):
            return original(self, src, dst_type, *rest)
        dtype, bits = target
        codes = torch.from_numpy(src.data.astype(np.float32)).to(dtype).view(bits).numpy()
        return interpreter.TensorHandle(codes.view(interpreter._get_np_dtype(dst_type)), dst_type.scalar)

    return cast


def _repaired_dot(original: Any) -> Any:
    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = [self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)]
        return original(self, *wide, *rest)

    return dot


@pytest.fixture(autouse=True)
def _repair_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = interpreter.InterpreterBuilder
    monkeypatch.setattr(builder, "cast_impl", _repaired_cast(builder.cast_impl))
    monkeypatch.setattr(builder, "create_fp_to_fp", _repaired_cast(builder.create_fp_to_fp))
    monkeypatch.setattr(builder, "create_dot", _repaired_dot(builder.create_dot))


@pytest.fixture
def launcher() -> Launcher:
    return JitLauncher()


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
