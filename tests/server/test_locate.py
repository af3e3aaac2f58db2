"""Which server is taken, and the one line that says why none is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from trtdecode.errors import ServerError
from trtdecode.server import locate
from trtdecode.server.locate import STUB_NAME, check_python, install_bundled_server, locate_server, python_name


def make_system(root: Path, python: str) -> Path:
    """A folder like /opt/tritonserver, with a stub that links `python`."""
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "tritonserver").write_bytes(b"\x7fELF")
    (root / "backends" / "python").mkdir(parents=True)
    (root / "backends" / "python" / STUB_NAME).write_bytes(f"\x7fELF\0libpython{python}.so.1.0\0".encode())
    return root


def make_bundle(root: Path, *pythons: str) -> Path:
    """A folder like the unpacked nvidia-pytriton wheel."""
    base = root / "pytriton" / "tritonserver"
    for folder in ("bin", "backends/python", *(f"python_backend_stubs/{python}" for python in pythons)):
        (base / folder).mkdir(parents=True)
    (base / "bin" / "tritonserver").write_bytes(b"\x7fELF")
    for python in pythons:
        (base / "python_backend_stubs" / python / STUB_NAME).write_bytes(b"\x7fELF")
    return root


@pytest.fixture(autouse=True)
def no_named_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(locate.SERVER_ENVIRONMENT_VARIABLE, raising=False)


def test_a_system_server_is_taken_when_its_stub_embeds_this_python(tmp_path: Path) -> None:
    system, bundle = make_system(tmp_path / "opt", python_name()), make_bundle(tmp_path / "tw", python_name())
    found = locate_server(bundle, system)
    assert (found.origin, found.binary) == ("system", system / "bin" / "tritonserver")


def test_a_system_server_for_another_python_is_passed_over(tmp_path: Path) -> None:
    system, bundle = make_system(tmp_path / "opt", "3.8"), make_bundle(tmp_path / "tw", "3.8", python_name())
    found = locate_server(bundle, system)
    assert found.origin == "bundled"
    assert found.stub.parent.name == python_name()
    assert found.library_dirs == (bundle / "nvidia_pytriton.libs",)


def test_the_environment_names_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = make_bundle(tmp_path / "tw", python_name())
    monkeypatch.setenv(locate.SERVER_ENVIRONMENT_VARIABLE, str(bundle))
    assert locate_server(system_root=tmp_path / "none").binary.is_relative_to(bundle)


def test_none_found_says_what_was_looked_at_and_the_command(tmp_path: Path) -> None:
    system, bundle = make_system(tmp_path / "opt", "3.8"), make_bundle(tmp_path / "tw", "3.8")
    with pytest.raises(ServerError) as caught:
        locate_server(bundle, system)
    text = str(caught.value)
    assert "\n" not in text
    assert "its stub embeds Python 3.8" in text
    assert f"no stub for Python {python_name()}" in text
    assert "python -m trtdecode.server.locate --install" in text


@pytest.mark.parametrize("version", [(3, 10), (3, 13), (2, 7)])
def test_an_unsupported_python_is_one_line(version: tuple[int, int]) -> None:
    with pytest.raises(ServerError, match=rf"Python {version[0]}\.{version[1]} is not supported.*3\.11 or 3\.12"):
        check_python(version, "1.26.4")


def test_numpy_2_is_refused_with_the_command() -> None:
    with pytest.raises(ServerError, match=r"numpy 2\.1\.0 is installed.*pip install 'numpy>=1\.26,<2'"):
        check_python((3, 11), "2.1.0")
    check_python((3, 12), "1.26.4")


def test_a_missing_libpython_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locate, "_libpython_name", lambda: "libpython9.9.so.1.0")
    monkeypatch.setattr(locate.sysconfig, "get_config_var", lambda name: str(tmp_path))
    with pytest.raises(ServerError, match=rf"libpython9\.9\.so\.1\.0 not found.*install libpython{python_name()}"):
        locate.check_libpython()


def test_install_unpacks_the_wheel_once(tmp_path: Path) -> None:
    target, commands = tmp_path / "bundle", []

    def pip(command: list[str]) -> None:
        commands.append(command)
        make_bundle(target, python_name())

    for _ in range(2):
        assert install_bundled_server(target, pip).origin == "bundled"
    [command] = commands
    assert command[0] == sys.executable
    assert "--no-deps" in command and command[-1] == "nvidia-pytriton==0.7.0"
    assert command[command.index("--target") + 1] == str(target)


def test_install_of_a_wheel_without_our_stub_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="holds no usable server"):
        install_bundled_server(tmp_path / "bundle", lambda command: None)


def test_a_failed_pip_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"pip could not install nvidia-pytriton==0\.7\.0: .+"):
        locate._run_pip([sys.executable, "-c", "import sys; print('ERROR: No network'); sys.exit(1)"])
