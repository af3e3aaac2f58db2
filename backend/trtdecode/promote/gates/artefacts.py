"""Is the version folder whole, unchanged, and free of what does not belong there?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtdecode.manifest import MANIFEST_FILE, FileEntry, Manifest, rank_dirs, read_manifest, verify_files
from trtdecode.promote.gate import Context, Gate

#: Written beside the promised files on purpose; reports are for people, the rest for later stages.
_ALLOWED = {MANIFEST_FILE, "config.pbtxt"}
_ALLOWED_FOLDERS = {"reports", "engines"}


def ask(context: Context) -> tuple[bool, str, dict[str, Any]]:
    """Compares every file with the manifest; a stray file (.tmp, .partial, .ipynb_checkpoints) is a refusal too."""
    ranks = rank_dirs(context.version_dir, context.manifest)
    files: list[FileEntry] = []
    stray: list[str] = []
    for folder in (context.version_dir, *ranks):
        manifest = read_manifest(folder)
        verify_files(folder, manifest)
        files += manifest.files.values()
        stray += _stray(folder, manifest, {path.name for path in ranks} if folder == context.version_dir else set())
    if stray:
        return False, f"{len(stray)} file(s) that the manifest does not list: {', '.join(stray[:5])}; remove them", {}
    num_bytes = sum(entry.num_bytes for entry in files)
    return True, f"{len(files)} files, {num_bytes} bytes, all digests equal", {"files": len(files)}


def _stray(folder: Path, manifest: Manifest, rank_folders: set[str]) -> list[str]:
    """Files of a folder that its manifest does not list; the ranks' folders have manifests of their own."""
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return sorted(
        name
        for name in present - manifest.files.keys() - _ALLOWED
        if name.split("/")[0] not in rank_folders
        and (name.split("/")[0] not in _ALLOWED_FOLDERS or _looks_temporary(name))
    )


def _looks_temporary(name: str) -> bool:
    return any(part.startswith(".") or part.endswith((".tmp", ".partial", "~")) for part in name.split("/"))


GATE = Gate("artefacts", ask)
