"""How the bench configures ours, in process and behind Triton alike, and how it names precision and machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtdecode.manifest import read_manifest

POOL_BYTES = 2 << 30


def settings(threads: int, asked: Sequence[str] = ()) -> dict[str, str]:
    """Parameters of config.pbtxt; `asked` are NAME=VALUE and come last. The same prompts come again in every repeat, so
    prefix caching is off unless asked for."""
    fixed = {"kv_cache_bytes": str(POOL_BYTES), "num_threads": str(threads), "enable_prefix_caching": "false"}
    return fixed | dict(text.split("=", 1) for text in asked)


def exact_settings(version_dir: Path) -> list[str]:
    """As the demo serves: the checkpoint's own 4-bit codes where the version has them, everything computed in f32."""
    return ["precision=int4"] if "int4" in read_manifest(version_dir).graphs else []


def fast_settings(version_dir: Path) -> list[str]:
    """INT8 activations, and bfloat16 in large steps where the CPU has it, as llama.cpp and OpenVINO GenAI choose by
    themselves. INT8 products want weights with a scale a row and no zero points: `trtdecode import --requantize`."""
    weights = ["precision=int8"] if "int8" in read_manifest(version_dir).graphs else []
    return [*weights, f"compute_precision={'mixed' if 'amx_bf16' in instructions() else 'int8'}"]


def precision_of(facts: Mapping[str, str]) -> str:
    """Of weights, of computing and of the KV cache, from an executor's `describe()`."""
    parts = facts["graph"].split(".")  # decoder.onnx is f32, decoder.int4.onnx is int4
    weights = parts[1] if len(parts) == 3 else "f32"
    return f"{weights} weights, {facts['compute_precision']} compute, {facts['kv_cache_precision']} KV"


def instructions() -> list[str]:
    flags = Path("/proc/cpuinfo").read_text().split()
    return [name for name in ("avx2", "avx512f", "avx512_vnni", "amx_int8", "amx_bf16") if name in flags]


def machine(threads: int) -> dict[str, Any]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": model,
        "instructions": instructions(),
        "threads": threads,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit,
        "load_average": os.getloadavg(),
    }
