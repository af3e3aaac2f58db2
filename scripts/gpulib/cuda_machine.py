"""What the machine is, and the two ceilings that figures are compared with: measured bandwidth and L2 size."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Timer = Callable[[Callable[[], None], int], float]  # (work, repeats) -> seconds of one


def describe() -> dict[str, Any]:
    """GPU, driver, versions, and the bandwidth of a large copy."""
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "sm": 10 * properties.major + properties.minor,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": l2_bytes(),
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton_lang": triton.__version__,
        "python": platform.python_version(),
        "copy_bytes_per_second": round(copy_bandwidth()),
    }


def cuda_seconds(work: Callable[[], None], repeats: int) -> float:
    """Device time of one `work` in seconds: `repeats` of them between two events, after one that warms up."""
    work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


@functools.cache
def copy_bandwidth() -> float:
    """Bytes read plus bytes written a second by a device-to-device copy of 1 GiB: the ceiling for memory-bound work."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2.0 * int(source.numel()) / cuda_seconds(lambda: _copy(target, source), 10)


def l2_bytes() -> int:
    """L2 cache size: data that fits in it would be measured too fast."""
    return int(torch.cuda.get_device_properties(0).L2_cache_size)


def _driver() -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text("ascii").strip()
    except OSError:
        return "unknown"


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)
