"""Which TensorRT builds the engines: the data-centre package or TensorRT-RTX. The only importer of either.

Both speak the same API; Polygraphy picks one for the whole process when it is first imported, so a process builds for
one flavour.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

from trtdecode import support
from trtdecode.errors import UnsupportedError

_MODULES = {support.TENSORRT: "tensorrt", support.TENSORRT_RTX: "tensorrt_rtx"}
_INSTALL = {support.TENSORRT: "pip install tensorrt", support.TENSORRT_RTX: 'pip install "trtdecode[engines]"'}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class TensorRt:
    """A loaded builder."""

    flavour: str
    version: str  # "1.7.1.116"
    module: Any  # tensorrt or tensorrt_rtx

    @property
    def is_rtx(self) -> bool:
        return self.flavour == support.TENSORRT_RTX


def installed_flavours() -> tuple[str, ...]:
    """The flavours whose package is importable here, preferred first."""
    return tuple(flavour for flavour in support.FLAVOURS if importlib.util.find_spec(_MODULES[flavour]) is not None)


def resolve_flavour(flavour: str, sm: int, installed: tuple[str, ...] | None = None) -> str:
    """The builder to use. "auto" prefers the data-centre package where it is installed and has the SM.

    Args:
        installed: what is importable (default: looked up).

    Raises:
        UnsupportedError: no such flavour, none installed, or none of the installed ones builds for the SM.
    """
    installed = installed_flavours() if installed is None else installed
    if flavour != "auto":
        if flavour not in support.FLAVOURS:
            raise UnsupportedError(f"--flavour {flavour!r} is unknown; use auto or {' or '.join(support.FLAVOURS)}")
        if flavour not in installed:
            raise UnsupportedError(f"--flavour {flavour}: not installed; `{_INSTALL[flavour]}`")
        return flavour
    for candidate in installed:
        if sm in support.FLAVOUR_SMS[candidate]:
            return candidate
    able = support.supported_flavours(sm)
    if not able:
        known = sorted({one for sms in support.FLAVOUR_SMS.values() for one in sms})
        raise UnsupportedError(f"--sm {sm}: no builder targets it; use one of {', '.join(map(str, known))}")
    raise UnsupportedError(
        f"--sm {sm} needs {' or '.join(able)}, installed: {', '.join(installed) or 'none'}; `{_INSTALL[able[0]]}`"
    )


def load_tensorrt(flavour: str) -> TensorRt:
    """Imports the builder and points Polygraphy at it.

    Raises:
        UnsupportedError: not installed, or this process has already loaded the other flavour.
    """
    with _lock:
        try:
            module = importlib.import_module(_MODULES[flavour])
        except ImportError as error:
            raise UnsupportedError(f"--flavour {flavour}: {error}; `{_INSTALL[flavour]}`") from error
        _point_polygraphy(flavour)
    return TensorRt(flavour, str(module.__version__), module)


def _point_polygraphy(flavour: str) -> None:
    wants_rtx = flavour == support.TENSORRT_RTX
    if "polygraphy.backend.trt" in sys.modules:
        has_rtx = bool(sys.modules["polygraphy.config"].USE_TENSORRT_RTX)
        if has_rtx != wants_rtx:
            other = support.TENSORRT_RTX if has_rtx else support.TENSORRT
            raise UnsupportedError(f"this process builds with {other}; build with {flavour} in another process")
        return
    os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1" if wants_rtx else "0"
    config: Any = importlib.import_module("polygraphy.config")
    config.USE_TENSORRT_RTX = wants_rtx  # where something imported `polygraphy` before without its backends
