"""Assembles the folder given to `--backend-directory`: the server's `python/` backend with this Python's stub, and
`trtdecode/`, which is our package itself."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import trtdecode
from trtdecode.server.locate import STUB_NAME, ServerInstallation

BACKEND_NAME = "trtdecode"


def package_dir() -> Path:
    """The folder of this package: it is the Triton backend."""
    return Path(trtdecode.__file__).resolve().parent


def cache_root() -> Path:
    """Per-user cache folder, by the XDG convention."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "trtdecode"


def assemble_backend_dir(installation: ServerInstallation, root: Path | None = None) -> Path:
    """Makes (or finds) the backend directory for one installation; its name is a digest of what it holds.

    Folders are symbolic links, so that it follows an editable package; files are copies, because Triton refuses a
    backend library whose real path lies outside the backend directory. Built beside and renamed, so that two servers
    starting at once both find a complete folder.
    """
    links = _links(installation)
    facts = sorted((name, str(path), 0 if path.is_dir() else path.stat().st_mtime_ns) for name, path in links.items())
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    target = (root or cache_root() / "backends") / digest
    if _is_complete(target, links):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{digest}.", dir=target.parent))
    for name, path in links.items():
        link = partial / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            link.symlink_to(path)
        else:
            shutil.copy2(path, link)
    try:
        partial.rename(target)
    except OSError:  # another process was first, or a damaged folder stands there
        if not _is_complete(target, links):
            shutil.rmtree(target)
            partial.rename(target)
        else:
            shutil.rmtree(partial)
    return target


def _links(installation: ServerInstallation) -> dict[str, Path]:
    links = {
        f"python/{entry.name}": entry.resolve()
        for entry in installation.python_backend.iterdir()
        if entry.name not in (STUB_NAME, "__pycache__")
    }
    links[f"python/{STUB_NAME}"] = installation.stub.resolve()
    links[BACKEND_NAME] = package_dir()
    for backend in installation.backends.iterdir():  # a system server keeps its other backends
        if backend.is_dir() and backend.name not in ("python", BACKEND_NAME):
            links[backend.name] = backend.resolve()
    return links


def _is_complete(target: Path, links: dict[str, Path]) -> bool:
    return all((target / name).exists() for name in links)
