"""Prints `ok`, or why the Python that runs this cannot serve, as one line. Runs under any Python from 3.6 on."""

import ctypes
import os
import sys
import sysconfig

DEBIAN = os.path.exists("/etc/debian_version")


def has_libpython(name: str) -> bool:
    """Whether the shared library that the Triton stub is linked with can be loaded."""
    folders = [sysconfig.get_config_var("LIBDIR") or "", os.path.join(sys.base_prefix, "lib")]
    folders.append("/usr/lib/" + (sysconfig.get_config_var("MULTIARCH") or ""))
    if any(os.path.exists(os.path.join(folder, name)) for folder in folders):
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def verdict() -> str:
    version = "{}.{}".format(*sys.version_info[:2])
    found = f"found Python {version} at {sys.executable}"
    if version not in ("3.11", "3.12"):
        return (
            f"{found}, needs 3.11 or 3.12 (the server's Python stub needs numpy 1.26, which has no wheel for others); "
            "install one (pyenv install 3.12) or set TRTDECODE_PYTHON=/path/to/python3.12"
        )
    if sys.implementation.name != "cpython":
        return f"{found}, which is {sys.implementation.name}; the Triton stub needs CPython"
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        package = f"python{version}-venv"
        return f"{found}, without venv; install it: " + (
            f"apt-get install {package}" if DEBIAN else f"your system's {package} package"
        )
    name = f"libpython{version}.so.1.0"
    if not has_libpython(name):
        return f"{found}, but not {name}, which the Triton stub loads; install it: " + (
            f"apt-get install libpython{version}"
            if DEBIAN
            else f"use a Python built with PYTHON_CONFIGURE_OPTS=--enable-shared (pyenv install {version})"
        )
    return "ok"


if __name__ == "__main__":
    print(verdict())
