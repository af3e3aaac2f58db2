"""Machines that only launch cubins need no triton-lang: kernel modules import, and compiling says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from trtdecode.executor.cuda_device import make_launcher
from trtdecode.kernels import cubin, language
from trtdecode.kernels.cubin_manifest import write_cubin_manifest
from trtdecode.kernels.launch import JitLauncher

_SCRIPT = """
import sys
sys.modules["triton"] = None  # as if it were not installed
from trtdecode.errors import UnsupportedError
from trtdecode.kernels.catalogue import SHAPES, variants_of
from trtdecode.kernels.launch import JitLauncher
for kernel, variant in variants_of(SHAPES["smollm2-135m"], "f16", ["f16", "int8", "fp8"]):
    print(variant.key)
try:
    JitLauncher()
except UnsupportedError as error:
    print("ERROR", error)
"""


def test_without_triton_lang_cubins_are_found_by_the_same_keys() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    *keys, error = done.stdout.splitlines()
    from trtdecode.kernels.catalogue import SHAPES, variants_of

    found = variants_of(SHAPES["smollm2-135m"], "f16", ["f16", "int8", "fp8"])
    assert keys == [variant.key for _, variant in found]
    assert error.startswith("ERROR triton-lang is needed to compile kernels at run time; install trtdecode[kernels]")


def test_cubins_come_first_and_the_compiler_stands_behind_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cubin, "DEFAULT_DIRECTORY", tmp_path)
    monkeypatch.setattr(cubin, "_cuda_driver", object)
    assert isinstance(make_launcher(90, lambda: 0), JitLauncher)
    write_cubin_manifest(tmp_path, [], "triton-lang 3.9.0")
    launcher = make_launcher(90, lambda: 0)
    assert isinstance(launcher, cubin.CubinLauncher)
    assert isinstance(launcher._fallback, JitLauncher)
    monkeypatch.setattr(language, "HAVE_LANGUAGE", False)
    launcher = make_launcher(90, lambda: 0)
    assert isinstance(launcher, cubin.CubinLauncher) and launcher._fallback is None
