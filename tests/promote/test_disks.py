"""A full and a read-only disk, really: small file systems in a mount namespace of the test's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]

#: Runs inside the namespace; prints what came of it as the last line.
SCRIPT = """
import contextlib, hashlib, io, json, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from promote.test_publish import make_version
from trtdecode.cli import main

folder, mode, gates = Path(sys.argv[2]), sys.argv[3], sys.argv[4].split(",")
repository = folder / "repository"
repository.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", repository], check=True)
first = make_version(repository / "m" / "1")
source = make_version(folder / "source", b"x" * 600_000)
before = hashlib.sha256((first / "decoder.onnx").read_bytes()).hexdigest()
if mode == "read-only":
    subprocess.run(["mount", "-o", "remount,ro", repository], check=True)
skips = [text for gate in gates for text in ("--skip", gate)]
errors = io.StringIO()
with contextlib.redirect_stderr(errors):
    status = main(["promote", str(source), "--to", str(repository), "--model", "m", "--who", "a test", *skips])
print(json.dumps({
    "status": status,
    "said": errors.getvalue(),
    "left": sorted(path.name for path in (repository / "m").iterdir()),
    "kept": before == hashlib.sha256((first / "decoder.onnx").read_bytes()).hexdigest(),
}))
"""
GATES = "artefacts,compatibility,engines,memory,parity,contract,golden,load,leak"


def promote_onto(folder: Path, mode: str) -> dict[str, Any]:
    namespace = ["unshare", "--mount", "--map-root-user"]
    try:
        allowed = subprocess.run([*namespace, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("no unshare on this machine")
    if allowed.returncode:
        pytest.skip(f"no mount namespaces here: {allowed.stderr.decode().strip()}")
    command = [*namespace, sys.executable, "-c", SCRIPT, str(TESTS), str(folder), mode, GATES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("full", "could not be written (no space left); nothing was changed"),
        ("read-only", "cannot be written (Read-only file system); check the mount and the rights"),
    ],
)
def test_one_line_and_nothing_lost(tmp_path: Path, mode: str, reason: str) -> None:
    found = promote_onto(tmp_path, mode)
    assert found["status"] == 1
    assert found["said"].startswith("trtdecode: ") and found["said"].count("\n") == 1
    assert reason in found["said"]
    assert (found["left"], found["kept"]) == (["1"], True)
