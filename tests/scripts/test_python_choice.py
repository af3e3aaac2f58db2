"""Which Python the scripts pick, and the one line they print when none will do."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import probe_python
import pytest

ROOT = Path(__file__).resolve().parents[2]
OLD = "found Python 3.9 at /usr/bin/python3, needs 3.11 or 3.12 (...); install one"
NO_LIBPYTHON = "found Python 3.12 at /opt/python3.12, but not libpython3.12.so.1.0, ...; install it: ..."


def find_python(bin_dir: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs find_python with only `bin_dir` and the system's basic tools on PATH, and no home."""
    tools = bin_dir.parent / "tools"
    tools.mkdir(exist_ok=True)
    for tool in ("dirname",):
        (tools / tool).symlink_to(Path("/usr/bin") / tool)
    environment = {"PATH": f"{bin_dir}:{tools}", "HOME": str(bin_dir.parent / "home"), **variables}
    script = f". {ROOT}/scripts/lib/python.sh; find_python"
    return subprocess.run(
        ["/bin/bash", "-c", f"set -euo pipefail; {script}", "demo"], env=environment, capture_output=True, text=True
    )


def fake_python(path: Path, verdict: str, status: int = 0) -> Path:
    """An interpreter whose probe gives this verdict."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{verdict}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_takes_the_first_usable(tmp_path: Path) -> None:
    fake_python(tmp_path / "bin" / "python3", OLD)
    usable = fake_python(tmp_path / "bin" / "python3.12", "ok")
    result = find_python(tmp_path / "bin")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{usable}\n", "")


def test_prefers_the_python3_of_the_shell(tmp_path: Path) -> None:
    first = fake_python(tmp_path / "bin" / "python3", "ok")
    fake_python(tmp_path / "bin" / "python3.11", "ok")
    assert find_python(tmp_path / "bin").stdout == f"{first}\n"


@pytest.mark.parametrize(
    "where",
    [".pyenv/versions/3.12.1/bin/python3", ".local/share/uv/python/cpython-3.11.9-linux-x86_64-gnu/bin/python3"],
)
def test_looks_into_version_managers(tmp_path: Path, where: str) -> None:
    fake_python(tmp_path / "bin" / "python3", OLD)
    managed = fake_python(tmp_path / "home" / where, "ok")
    assert find_python(tmp_path / "bin").stdout == f"{managed}\n"


def test_skips_what_does_not_run(tmp_path: Path) -> None:
    """A pyenv shim of a version that is not active exits with an error."""
    fake_python(tmp_path / "bin" / "python3", "pyenv: python3: command not found", status=127)
    usable = fake_python(tmp_path / "bin" / "python3.11", "ok")
    assert find_python(tmp_path / "bin").stdout == f"{usable}\n"


def test_named_python_is_the_only_candidate(tmp_path: Path) -> None:
    fake_python(tmp_path / "bin" / "python3", "ok")
    named = fake_python(tmp_path / "named", OLD)
    result = find_python(tmp_path / "bin", TRTDECODE_PYTHON=str(named))
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"demo: {OLD}\n")


def test_named_python_that_is_not_there(tmp_path: Path) -> None:
    result = find_python(tmp_path / "bin", TRTDECODE_PYTHON="/nowhere/python")
    assert result.returncode == 1
    assert (
        result.stderr
        == "demo: TRTDECODE_PYTHON=/nowhere/python does not run; name a Python 3.11 or 3.12, or unset it\n"
    )


def test_reports_the_refusal_closest_to_usable(tmp_path: Path) -> None:
    fake_python(tmp_path / "bin" / "python3", OLD)
    fake_python(tmp_path / "bin" / "python3.12", NO_LIBPYTHON)
    result = find_python(tmp_path / "bin")
    assert (result.returncode, result.stderr) == (1, f"demo: {NO_LIBPYTHON}\n")


def test_no_python_at_all(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    result = find_python(tmp_path / "bin")
    assert result.returncode == 1
    assert result.stderr.startswith("demo: no Python 3.11 or 3.12 found on PATH, in pyenv or in uv; install one")
    assert result.stderr.count("\n") == 1


def test_the_python_of_the_tests_is_usable() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "lib" / "probe_python.py")], capture_output=True, text=True
    )
    assert (result.stdout, result.stderr) == ("ok\n", "")


def test_unsupported_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 0, "final", 0))
    verdict = probe_python.verdict()
    assert verdict.startswith(f"found Python 3.13 at {sys.executable}, needs 3.11 or 3.12")
    assert "TRTDECODE_PYTHON" in verdict


def test_missing_libpython(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"LIBDIR": "/nowhere"}.get)
    monkeypatch.setattr(sys, "base_prefix", "/nowhere")

    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(probe_python.ctypes, "CDLL", refuse)
    monkeypatch.setattr(probe_python, "DEBIAN", True)
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    version = "{}.{}".format(*sys.version_info[:2])
    assert probe_python.verdict() == (
        f"found Python {version} at {sys.executable}, but not libpython{version}.so.1.0, which the Triton stub loads; "
        f"install it: apt-get install libpython{version}"
    )


def test_missing_venv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    monkeypatch.setattr(probe_python, "DEBIAN", True)
    version = "{}.{}".format(*sys.version_info[:2])
    assert probe_python.verdict().endswith(f"without venv; install it: apt-get install python{version}-venv")
