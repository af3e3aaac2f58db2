"""While both versions are loaded (mode overlap), do weights and KV cache fit twice?"""

from __future__ import annotations

import re
from typing import Any

from trtdecode.config import ServingConfig
from trtdecode.manifest import Manifest, rank_dirs, read_manifest
from trtdecode.promote.gate import Context, Gate, available_memory

_KV_BYTES = re.compile(r'key:\s*"kv_cache_bytes"\s*,?\s*value\s*:?\s*\{\s*string_value:\s*"([^"]+)"')
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def ask(context: Context) -> tuple[bool, str, dict[str, Any]]:
    """The version in service already holds its share: what is free must hold the new one."""
    if context.mode != "overlap" or context.current_dir is None:
        return True, "nothing is loaded twice", {}
    match = _KV_BYTES.search(context.config_pbtxt)
    has_cache = context.manifest.spec.task == "generate"
    if match is None and has_cache:
        return (
            False,
            "mode overlap needs kv_cache_bytes in config.pbtxt: the default takes a share of free memory, which the "
            "version in service has already taken; set it, or promote with --mode replace",
            {},
        )
    kv_bytes = _bytes(match[1]) if match is not None and has_cache else 0
    parts = [read_manifest(folder) for folder in rank_dirs(context.version_dir, context.manifest)]
    weights = sum(map(_weight_bytes, parts or [context.manifest]))
    kv_bytes *= max(1, len(parts))  # each rank has a pool
    needed, free = kv_bytes + weights, available_memory()
    share = needed / free
    limit = context.limits.memory.max_share_of_free
    figures = {"needed_bytes": needed, "available_bytes": free}
    evidence = (
        f"needs {needed} bytes (weights {weights}, KV {kv_bytes}) of {free} available: {share:.2f}, limit {limit}"
    )
    return share <= limit, evidence, figures


def _weight_bytes(manifest: Manifest) -> int:
    """Of the largest graph: one is loaded."""
    return max((entry.num_bytes for name, entry in manifest.files.items() if name.endswith(".data")), default=0)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9.]+)\s*([A-Za-z]*)", text)
    return int(float(match[1]) * _UNITS.get(match[2], 1)) if match else ServingConfig().kv_cache_bytes


GATE = Gate("memory", ask)
