"""Makes `.venv` and installs the package in it, once: a stamp file says what is there. Standard library only.

    python3 scripts/lib/environment.py [--extra NAME ...]

The install is editable: a `git pull` needs a new install only when pyproject.toml or the native sources change.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from progress import Progress, StepFailed

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
CACHE = ROOT / ".cache"
LOG_FILE = CACHE / "setup.log"
_STAMP = VENV / "trtdecode-installed.json"
_NETWORK_HINT = "is the package index reachable? (`pip config list` shows which one pip asks)"


def inputs_digest() -> str:
    """Changes when an install from these sources would differ: dependencies, native code, where the clone lies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    # Not the linters' settings: changing those installs nothing.
    relevant = [project.get("build-system"), project.get("project"), project.get("tool", {}).get("scikit-build")]
    digest = hashlib.sha256(repr((str(ROOT), relevant)).encode())
    for path in (ROOT / "CMakeLists.txt", *sorted((ROOT / "native").rglob("*"))):
        if path.is_file():
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def read_stamp() -> dict[str, object]:
    """What the last complete install wrote; empty when there was none or its Python is gone."""
    if not VENV_PYTHON.exists():  # also when it is a link to a Python that was removed
        return {}
    try:
        stamp = json.loads(_STAMP.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def ensure(extras: Iterable[str], progress: Progress) -> None:
    """Brings `.venv` to hold the package with at least `extras`.

    Raises:
        StepFailed: a step's command failed; the text says which and where its log is.
    """
    digest = inputs_digest()
    if _covers(read_stamp(), digest, extras):
        return
    with _lock():
        stamp = read_stamp()
        if _covers(stamp, digest, extras):  # another script did it while this one waited
            return
        wanted = sorted({*_extras_of(stamp), *extras})
        if not _venv_runs():
            with progress.step(f"Python {sys.version.split()[0]}: making .venv"):
                shutil.rmtree(VENV, ignore_errors=True)
                progress.run([sys.executable, "-m", "venv", str(VENV)])
        _STAMP.unlink(missing_ok=True)
        target = f"{ROOT}[{','.join(wanted)}]" if wanted else str(ROOT)
        with progress.step(f"installing trtdecode{f' with {chr(44).join(wanted)}' if wanted else ''}"):
            progress.run(pip("install", "--editable", target), hint=_NETWORK_HINT)
        _STAMP.write_text(json.dumps({"digest": digest, "extras": wanted}) + "\n", "utf-8")


def pip(*arguments: str) -> list[str]:
    """The command line of the venv's pip; PIP_* variables and pip.conf stay in force."""
    command, *rest = arguments
    return [str(VENV_PYTHON), "-m", "pip", command, "--disable-pip-version-check", "--no-input", *rest]


def _covers(stamp: dict[str, object], digest: str, extras: Iterable[str]) -> bool:
    return stamp.get("digest") == digest and set(extras) <= set(_extras_of(stamp))


def _extras_of(stamp: dict[str, object]) -> list[str]:
    extras = stamp.get("extras", [])
    return [str(extra) for extra in extras] if isinstance(extras, list) else []


def _venv_runs() -> bool:
    """Whether `.venv` has a working pip of the Python version that runs this."""
    if not VENV_PYTHON.exists():
        return False
    check = "import sys, pip; print(sys.version_info[:2])"
    result = subprocess.run([str(VENV_PYTHON), "-c", check], capture_output=True, text=True)
    return result.returncode == 0 and result.stdout.strip() == str(sys.version_info[:2])


@contextmanager
def _lock() -> Iterator[None]:
    """Two scripts started at once install one after the other."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "setup.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description="Make .venv and install trtdecode in it.")
    parser.add_argument("--extra", action="append", default=[], help="an extra of pyproject.toml; repeatable")
    arguments = parser.parse_args()
    try:
        ensure(arguments.extra, Progress(LOG_FILE))
    except StepFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
