"""What this machine lets the process use: cores and memory, within affinity and control-group limits."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CPU_ROOT = Path("/sys/devices/system/cpu")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def usable_physical_cores(cpu_root: Path = _CPU_ROOT, cgroup_root: Path = _CGROUP_ROOT) -> int:
    """Physical cores among the CPUs this process may run on, at least 1, capped by the control group's CPU quota.

    Two hyper-threads of one core count once: matrix products keep a core's units busy with one thread.
    """
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        siblings = _read(cpu_root / f"cpu{cpu}" / "topology" / "thread_siblings_list")
        cores.add(siblings or str(cpu))
    quota = _cpu_quota(cgroup_root)
    return max(1, min(len(cores), quota or len(cores)))


def memory_bytes(cgroup_root: Path = _CGROUP_ROOT) -> int:
    """Bytes of RAM this process may use: the machine's, or its control group's limit when that is smaller."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _read(cgroup_root / name)
        if limit.isdigit():
            return min(physical, int(limit))
    return physical


def _cpu_quota(cgroup_root: Path) -> int | None:
    """Whole CPUs of a control group (version 2, then 1), rounded up; None without a limit."""
    fields = _read(cgroup_root / "cpu.max").split()
    if not fields:
        fields = [_read(cgroup_root / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]):
        return math.ceil(int(fields[0]) / int(fields[1]))
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except OSError:
        return ""
