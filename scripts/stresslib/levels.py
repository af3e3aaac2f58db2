"""What must be back where it was: memory of processes, shared memory, blocks, requests."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Levels:
    """Sizes at one moment, in bytes where they are memory."""

    num_requests: int  # sent so far
    rss: Mapping[str, int]  # by process: what it is called here
    shm_bytes: int
    shm_regions: int
    blocks_used: int
    live: int

    def row(self) -> str:
        """One line of the report."""
        memory = ", ".join(f"{name} {size / MIB:.1f} MiB" for name, size in self.rss.items())
        shm = f"{self.shm_regions} regions of {self.shm_bytes / MIB:.1f} MiB in /dev/shm"
        rest = f"{self.blocks_used} blocks used, {self.live} requests inside"
        return f"after {self.num_requests:>6} requests: {memory}; {shm}; {rest}"

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "rss": dict(self.rss)}


def rss_of(pid: int) -> int:
    """Resident bytes of a process, its shared-memory pages not counted: those are /dev/shm's."""
    fields = Path(f"/proc/{pid}/statm").read_text("ascii").split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def own_rss() -> int:
    """Our own, after everything that is free has been given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return rss_of(os.getpid())


def differences(before: Levels, after: Levels, max_growth: int) -> list[str]:
    """What is not back; empty when all is well.

    Args:
        max_growth: bytes that one process may have gained between the two.
    """
    found = []
    for name, size in after.rss.items():
        growth = size - before.rss[name]
        if growth > max_growth:
            found.append(f"RSS of {name} grew by {growth / MIB:.1f} MiB (limit {max_growth / MIB:g})")
    if (after.shm_regions, after.shm_bytes) > (before.shm_regions, before.shm_bytes):
        found.append(
            f"/dev/shm: {after.shm_regions} regions of {after.shm_bytes} bytes, before "
            f"{before.shm_regions} of {before.shm_bytes}"
        )
    if after.blocks_used:
        found.append(f"{after.blocks_used} KV blocks are still in use")
    if after.live:
        found.append(f"{after.live} requests have had no end")
    return found
