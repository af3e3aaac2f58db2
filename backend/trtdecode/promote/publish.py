"""A version folder into a repository: copied beside, verified, fsynced, renamed. Half a version is never visible.

Triton ignores folders of a model whose name is not a number, so the partial copy can lie where the rename is atomic.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from trtdecode.errors import LoadError, ManifestError
from trtdecode.manifest import MANIFEST_FILE, rank_dirs, read_manifest, sha256_of, verify_files

PARTIAL = ".partial"
ROLLED_BACK = ".rolled_back"


class PromotionError(LoadError):
    """The promotion cannot go on; the version in service is untouched."""


@contextlib.contextmanager
def model_lock(repository: Path, model: str) -> Iterator[None]:
    """One promotion of a model at a time, on every machine that shares the file system's locks.

    Raises:
        PromotionError: another one holds it, or the repository cannot be written.
    """
    path = repository / f".{model}.promotion.lock"
    try:
        file = path.open("a")
    except OSError as error:
        raise PromotionError(
            f"{repository}: cannot be written ({error.strerror}); check the mount and the rights"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PromotionError(f"another promotion of {model} runs now ({path}); wait for its end") from None
        yield


def versions(model_dir: Path) -> list[int]:
    """Numbers of the versions in a model's folder, ascending; what is not a plain number is no version."""
    if not model_dir.is_dir():
        return []
    return sorted(int(path.name) for path in model_dir.iterdir() if path.is_dir() and _is_version(path.name))


def equal_version(model_dir: Path, source: Path) -> int | None:
    """The version that already holds exactly these artefacts."""
    wanted = sha256_of(source / MANIFEST_FILE)
    for number in reversed(versions(model_dir)):
        manifest = model_dir / str(number) / MANIFEST_FILE
        if manifest.is_file() and sha256_of(manifest) == wanted:
            return number
    return None


def publish(source: Path, model_dir: Path, number: int) -> Path:
    """Copies the files that the manifest lists, and the reports.

    Raises:
        PromotionError: no space, read-only, the number is taken, or a file changed while it was copied.
    """
    target = model_dir / str(number)
    if target.exists():
        raise PromotionError(f"{target} exists already; choose a higher version")
    partial = model_dir / f".{number}{PARTIAL}"
    shutil.rmtree(partial, ignore_errors=True)  # of a promotion that was killed
    manifest = read_manifest(source)
    names = []
    for folder in (source, *rank_dirs(source, manifest)):
        promised = [folder / name for name in (*read_manifest(folder).files, MANIFEST_FILE)]
        reports = [path for path in folder.glob("reports/*") if path.is_file()]
        names += [path.relative_to(source).as_posix() for path in (*promised, *reports)]
    try:
        for name in dict.fromkeys(names):
            destination = partial / name
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, destination)
            _sync(destination)
        for copied in (partial, *rank_dirs(partial, manifest)):
            verify_files(copied, read_manifest(copied))
        for folder in {(partial / name).parent for name in names}:
            _sync(folder)
        partial.rename(target)
        _sync(model_dir)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        reason = "no space left" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise PromotionError(f"{partial}: could not be written ({reason}); nothing was changed") from error
    except ManifestError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


def withdraw(model_dir: Path, number: int) -> Path:
    """Takes a version out of Triton's sight without deleting it."""
    target = model_dir / f".{number}{ROLLED_BACK}"
    shutil.rmtree(target, ignore_errors=True)
    (model_dir / str(number)).rename(target)
    _sync(model_dir)
    return target


def _is_version(name: str) -> bool:
    return name.isdecimal() and name.isascii() and not name.startswith("0")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
