"""Engines on disk: written whole or not at all, and found again by what they were built from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trtdecode.errors import ManifestError
from trtdecode.executor.engine_files import miss_reason
from trtdecode.executor.engine_steps import EngineFile, EngineSteps, read_steps


class EngineStore:
    """The engines of one folder.

    A file name carries the digest of the engine's key, so a rebuild never writes over a file that a server may have
    open: it makes a new one, switches `segments.json`, and then removes the old.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._recorded = _recorded(directory)

    def find(self, segment: str, key: Mapping[str, str]) -> tuple[str, EngineFile | None, str | None]:
        """File name for a segment, its record if it can be used as it is, else the reason why not."""
        name = f"{segment}-{_digest(key)[:12]}.engine"
        recorded = self._recorded.get(name)
        if recorded is None:
            # The same segment under another key tells what changed.
            others = [one for file, one in self._recorded.items() if file.startswith(f"{segment}-")]
            reason = miss_reason(self.directory, name, others[0], key) if others else "not built yet"
            return name, None, reason
        reason = miss_reason(self.directory, name, recorded, key)
        return name, recorded if reason is None else None, reason

    def write(self, name: str, serialized: Any, key: Mapping[str, str]) -> EngineFile:
        """Writes an engine (any buffer) and returns its record. Half a file is never visible under `name`."""
        path = self.directory / name
        partial = path.with_name(f"{name}.{os.getpid()}.partial")
        view = memoryview(serialized)
        try:
            with partial.open("wb") as file:
                file.write(view)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return EngineFile(hashlib.sha256(view).hexdigest(), view.nbytes, dict(key))

    def remove_stale(self, keep: Collection[str]) -> None:
        """Deletes engines (and what a killed build left) that `segments.json` does not name."""
        for path in self.directory.iterdir():
            if (path.suffix == ".engine" and path.name not in keep) or path.name.endswith(".partial"):
                path.unlink(missing_ok=True)


def _recorded(directory: Path) -> dict[str, EngineFile]:
    try:
        steps: EngineSteps = read_steps(directory)
    except ManifestError:
        return {}  # a folder without a readable record has no engines that can be trusted
    return dict(steps.engines)


def _digest(key: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()
