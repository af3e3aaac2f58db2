"""What a compiled kernel takes of a multiprocessor, as `cuobjdump -res-usage` reports it; needs no GPU."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from trtdecode.errors import LoadError

_FUNCTION = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True)
class Resources:
    """Per thread: registers, stack and local bytes. Per block: static shared bytes."""

    registers: int
    stack_bytes: int
    static_shared_bytes: int
    local_bytes: int

    @property
    def spills(self) -> bool:
        """Whether any value lives in (slow) local memory instead of a register."""
        return self.stack_bytes > 0 or self.local_bytes > 0


def parse_res_usage(text: str) -> dict[str, Resources]:
    """Resources of every function in the output of `cuobjdump -res-usage`.

    Raises:
        LoadError: no function found, or a function line in another form than expected.
    """
    found = {name: Resources(*map(int, numbers)) for name, *numbers in _FUNCTION.findall(text)}
    expected = len(re.findall(r"^\s*Function ", text, flags=re.MULTILINE))
    if not found or len(found) != expected:
        raise LoadError(f"cuobjdump -res-usage: read {len(found)} of {expected} functions from {text[:200]!r}")
    return found


def measure(cubin: Path, cuobjdump: str) -> Resources:
    """Resources of the one function in a cubin file."""
    command = [cuobjdump, "-res-usage", str(cubin)]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    functions = parse_res_usage(text)
    if len(functions) != 1:
        raise LoadError(f"{cubin}: {len(functions)} functions {sorted(functions)}, expected one")
    return next(iter(functions.values()))
