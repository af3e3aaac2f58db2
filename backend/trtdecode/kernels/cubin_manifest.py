"""The list of a folder's cubins: written by `aot`, read by `CubinLauncher`, with no need of triton-lang."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtdecode.errors import ManifestError

FORMAT_VERSION = 1
CUBIN_MANIFEST = "cubins.json"


@dataclass(frozen=True)
class CubinEntry:
    """One compiled variant for one SM."""

    key: str  # Variant.key
    kernel: str  # Kernel.name
    sm: int
    file: str  # relative to the manifest
    sha256: str
    entry_point: str  # the function's name in the cubin
    signature: tuple[str, ...]  # types of the run-time arguments, as Variant.types
    constexprs: dict[str, bool | int | float | str]
    num_warps: int
    num_stages: int
    shared_bytes: int  # dynamic shared memory to ask for at launch
    hidden_pointers: int  # scratch pointers that the compiler appends to the arguments; null here
    registers: int
    stack_bytes: int
    local_bytes: int


def write_cubin_manifest(directory: Path, entries: list[CubinEntry], compiler: str) -> None:
    """Writes `cubins.json`, replacing an older one in one step."""
    content = {
        "format_version": FORMAT_VERSION,
        "compiler": compiler,
        "cubins": [dataclasses.asdict(entry) for entry in sorted(entries, key=lambda e: (e.key, e.sm))],
    }
    partial = directory / f"{CUBIN_MANIFEST}.partial"
    partial.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    partial.replace(directory / CUBIN_MANIFEST)


def read_cubin_manifest(directory: Path) -> list[CubinEntry]:
    """Reads `cubins.json`.

    Raises:
        ManifestError: missing, not JSON, of another format version or form.
    """
    path = directory / CUBIN_MANIFEST
    advice = "compile the cubins again with `python -m trtdecode.kernels.aot`"
    try:
        raw: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if raw["format_version"] != FORMAT_VERSION:
            version = raw["format_version"]
            raise ManifestError(f"{path}: format_version {version}, this trtdecode reads {FORMAT_VERSION}; {advice}")
        return [CubinEntry(**{**entry, "signature": tuple(entry["signature"])}) for entry in raw["cubins"]]
    except FileNotFoundError:
        raise ManifestError(f"{path}: not found; {advice}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ManifestError(f"{path}: not a cubin manifest ({error!r}); {advice}") from error
