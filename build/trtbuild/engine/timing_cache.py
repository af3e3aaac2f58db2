"""The builder's timing cache, shared by all builds of a machine.

What the builder measured for one kernel serves every engine with the same builder, version and GPU, so those name the
file. Polygraphy reads and merges it under a file lock; a damaged file is an empty cache to it, not an error.
TensorRT-RTX measures nothing at build time and takes no cache (its calls are no-ops since 1.2).
"""

from __future__ import annotations

import os
from pathlib import Path


def timing_cache_key(flavour: str, builder_version: str, sm: int) -> str:
    """What measurements depend on besides the kernel itself; also recorded in the manifest."""
    return f"{flavour}-{builder_version}-sm{sm}"


def timing_cache_path(key: str, root: Path | None = None) -> Path:
    """Where the cache of a key lies; its folder is made.

    Args:
        root: folder of all caches; default $XDG_CACHE_HOME/trtdecode/timing.
    """
    if root is None:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtdecode" / "timing"
    root.mkdir(parents=True, exist_ok=True)
    return root / f"{key}.cache"
