"""The kernels' own tests, compiled and run natively, and the same kernels from ahead-of-time cubins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from check_report import Skipped

ROOT = Path(__file__).resolve().parents[2]


def run() -> dict[str, Any]:
    """tests/kernels without the slow ones: their fixtures use CUDA tensors where there is a GPU."""
    return _pytest()


def run_cubins() -> dict[str, Any]:
    """Compiles the cubins of SmolLM2's shape for this GPU and attends with them, no compiler at run time."""
    import torch
    from trtdecode.kernels.cubin import CubinLauncher
    from trtdecode.kernels.cubin_manifest import read_cubin_manifest
    from trtdecode.kernels.layernorm_gelu import layernorm_gelu, layernorm_gelu_reference

    major, minor = torch.cuda.get_device_capability()
    sm = 10 * major + minor
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trtdecode.kernels.aot", "--out", folder, "--sm", str(sm)]
        done = subprocess.run([*command, "--shape", "smollm2-135m"], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr.strip() or done.stdout
        launch = CubinLauncher(Path(folder), sm, lambda: int(torch.cuda.current_stream().cuda_stream))
        x = torch.randn(64, 576, device="cuda").half()
        weight, bias = torch.randn(576, device="cuda").half(), torch.randn(576, device="cuda").half()
        got = layernorm_gelu(launch, x, weight, bias, 1e-6, "tanh", torch.empty_like(x))
        difference = (got.float() - layernorm_gelu_reference(x, weight, bias, 1e-6, "tanh").float()).abs().max()
        assert difference < 1e-2, f"LayerNorm-GELU from a cubin is off by {difference}"
        return {"sm": sm, "cubins": len(read_cubin_manifest(Path(folder))), "largest_difference": float(difference)}


def _pytest() -> dict[str, Any]:
    command = [sys.executable, "-m", "pytest", "tests/kernels", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    if "No module named pytest" in done.stderr:
        raise Skipped("pytest is not installed")
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)
    assert done.returncode == 0, f"{counts}: {', '.join(failed[:10]) or done.stdout[-400:] + done.stderr[-400:]}"
    return {"tests": counts}
