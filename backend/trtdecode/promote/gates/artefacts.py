"""Is the version folder whole, unchanged, and free of what does not belong there?"""

from __future__ import annotations

from typing import Any

from trtdecode.manifest import MANIFEST_FILE, verify_files
from trtdecode.promote.gate import Context, Gate

#: Written beside the promised files on purpose; reports are for people, the rest for later stages.
_ALLOWED = {MANIFEST_FILE, "config.pbtxt"}
_ALLOWED_FOLDERS = {"reports", "engines"}


def ask(context: Context) -> tuple[bool, str, dict[str, Any]]:
    """Compares every file with the manifest; a stray file (.tmp, .partial, .ipynb_checkpoints) is a refusal too."""
    manifest = context.manifest
    verify_files(context.version_dir, manifest)
    present = {
        path.relative_to(context.version_dir).as_posix() for path in context.version_dir.rglob("*") if path.is_file()
    }
    stray = sorted(
        name
        for name in present - manifest.files.keys() - _ALLOWED
        if name.split("/")[0] not in _ALLOWED_FOLDERS or _looks_temporary(name)
    )
    if stray:
        return False, f"{len(stray)} file(s) that the manifest does not list: {', '.join(stray[:5])}; remove them", {}
    num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
    return True, f"{len(manifest.files)} files, {num_bytes} bytes, all digests equal", {"files": len(manifest.files)}


def _looks_temporary(name: str) -> bool:
    return any(part.startswith(".") or part.endswith((".tmp", ".partial", "~")) for part in name.split("/"))


GATE = Gate("artefacts", ask)
