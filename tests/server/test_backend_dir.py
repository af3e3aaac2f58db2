"""The folder for --backend-directory: complete, shared, and repaired when damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from trtdecode.server.backend_dir import assemble_backend_dir, package_dir
from trtdecode.server.locate import STUB_NAME, ServerInstallation


@pytest.fixture
def installation(tmp_path: Path) -> ServerInstallation:
    backends = tmp_path / "server" / "backends"
    for backend in ("python", "onnxruntime"):
        (backends / backend).mkdir(parents=True)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py", STUB_NAME):
        (backends / "python" / name).write_text(name)
    stub = tmp_path / "stubs" / STUB_NAME
    stub.parent.mkdir()
    stub.write_text("the stub for this python")
    binary = tmp_path / "server" / "tritonserver"
    return ServerInstallation("bundled", binary, backends, backends / "python", stub, ())


def test_it_holds_the_python_backend_with_our_stub_and_this_package(
    installation: ServerInstallation, tmp_path: Path
) -> None:
    made = assemble_backend_dir(installation, tmp_path / "cache")
    assert (made / "python" / STUB_NAME).read_text() == "the stub for this python"
    assert (made / "python" / "libtriton_python.so").is_file()
    assert (made / "trtdecode" / "model.py").is_file()
    assert (made / "trtdecode").resolve() == package_dir()
    assert (made / "onnxruntime").is_dir(), "the server's other backends stay usable"


def test_it_is_made_once(installation: ServerInstallation, tmp_path: Path) -> None:
    made = assemble_backend_dir(installation, tmp_path / "cache")
    assert assemble_backend_dir(installation, tmp_path / "cache") == made
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [made.name], "no leftovers"


def test_another_stub_is_another_folder(installation: ServerInstallation, tmp_path: Path) -> None:
    made = assemble_backend_dir(installation, tmp_path / "cache")
    installation.stub.write_text("a newer stub")
    newer = assemble_backend_dir(installation, tmp_path / "cache")
    assert newer != made
    assert (newer / "python" / STUB_NAME).read_text() == "a newer stub"


def test_a_damaged_folder_is_made_again(installation: ServerInstallation, tmp_path: Path) -> None:
    made = assemble_backend_dir(installation, tmp_path / "cache")
    (made / "python" / STUB_NAME).unlink()
    assert assemble_backend_dir(installation, tmp_path / "cache") == made
    assert (made / "python" / STUB_NAME).is_file()
