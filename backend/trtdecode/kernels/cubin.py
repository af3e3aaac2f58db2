"""Launches ahead-of-time cubins through the CUDA driver: no kernel compiler at run time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trtdecode.errors import UnsupportedError
from trtdecode.kernels.cubin_manifest import CubinEntry, read_cubin_manifest
from trtdecode.kernels.launch import POINTER_ALIGNMENT, Constexprs, Grid, Kernel, Launcher, variant_of
from trtdecode.manifest import sha256_of

#: Where `cmake --install` puts them: beside the sources, so that the backend folder is complete.
DEFAULT_DIRECTORY = Path(__file__).parents[1] / "cubins"
#: More dynamic shared memory than this must be asked for explicitly (CUDA programming guide).
DEFAULT_SHARED_LIMIT = 48 * 1024
_C_TYPES = {"i32": ctypes.c_int32, "fp32": ctypes.c_float}


@dataclass(frozen=True)
class _Loaded:
    """A function ready to launch. `module` keeps the code on the device."""

    entry: CubinEntry
    module: Any
    function: Any
    c_types: tuple[Any, ...]


def runs_on(built_for: int, sm: int) -> bool:
    """Whether a cubin for `built_for` runs on a device of compute capability `sm` (89 is 8.9).

    Binary compatibility holds upwards within a major version; from SM 90 on triton-lang builds
    architecture-specific code ("sm_90a"), which runs on that very capability only (CUDA C++ programming guide).
    """
    if built_for >= 90:
        return built_for == sm
    return built_for // 10 == sm // 10 and built_for <= sm


class CubinLauncher:
    """Launches a variant's cubin on the current stream; loads each cubin at its first launch.

    Args:
        directory: holds `cubins.json` as `aot` wrote it.
        sm: the device's compute capability, 89 for 8.9.
        stream: gives the current stream's handle as an int.
        fallback: takes the calls for which there is no cubin; None makes them an error.
        driver: `cuda.bindings.driver`; a test gives a recorder.

    Raises:
        ManifestError: the folder has no readable `cubins.json`.
    """

    def __init__(
        self,
        directory: Path,
        sm: int,
        stream: Callable[[], int],
        fallback: Launcher | None = None,
        driver: Any = None,
    ) -> None:
        self._directory = directory
        self._sm = sm
        self._stream = stream
        self._fallback = fallback
        self._driver = _cuda_driver() if driver is None else driver
        self._loaded: dict[str, _Loaded] = {}
        # The closest architecture wins: the list is in order of SM.
        matching = (entry for entry in read_cubin_manifest(directory) if runs_on(entry.sm, sm))
        self._entries = {entry.key: entry for entry in sorted(matching, key=lambda entry: entry.sm)}

    def __len__(self) -> int:
        """Cubins that this device can run."""
        return len(self._entries)

    def __call__(self, kernel: Kernel, grid: Grid, args: Sequence[Any], constexprs: Constexprs) -> None:
        """Launches, or hands over to the fallback.

        Raises:
            UnsupportedError: no cubin and no fallback, or the cubin is not what the manifest says.
            RuntimeError: the driver refused; the text has its error's name.
        """
        key = variant_of(kernel, args, constexprs).key
        loaded = self._loaded.get(key)
        if loaded is None:
            entry = self._entries.get(key)
            if entry is None:
                self._without_cubin(key, kernel, grid, args, constexprs)
                return
            loaded = self._loaded.setdefault(key, self._load(entry))
        hidden = loaded.entry.hidden_pointers
        values = (*(_value_of(argument) for argument in args), *(0,) * hidden)
        self._check(
            self._driver.cuLaunchKernel(
                loaded.function,
                *grid,
                32 * loaded.entry.num_warps,
                1,
                1,
                loaded.entry.shared_bytes,
                self._stream(),
                (values, loaded.c_types),
                0,
            ),
            key,
        )

    def _without_cubin(self, key: str, *call: Any) -> None:
        if self._fallback is None:
            raise UnsupportedError(
                f"{self._directory}: no cubin of {key} for SM {self._sm}; compile it with "
                f"`python -m trtdecode.kernels.aot --model VERSION_DIR --sm {self._sm}`, or install trtdecode[kernels]"
            )
        self._fallback(*call)

    def _load(self, entry: CubinEntry) -> _Loaded:
        path = self._directory / entry.file
        if not path.is_file() or sha256_of(path) != entry.sha256:
            raise UnsupportedError(
                f"{path}: missing or not the file that cubins.json lists; compile it again with "
                f"`python -m trtdecode.kernels.aot`"
            )
        driver = self._driver
        module = self._check(driver.cuModuleLoadData(path.read_bytes()), entry.key)
        function = self._check(driver.cuModuleGetFunction(module, entry.entry_point.encode()), entry.key)
        if entry.shared_bytes > DEFAULT_SHARED_LIMIT:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(driver.cuFuncSetAttribute(function, attribute, entry.shared_bytes), entry.key)
        c_types = [
            ctypes.c_void_p if kind.startswith("*") else _C_TYPES[kind.split(":")[0]] for kind in entry.signature
        ]
        return _Loaded(entry, module, function, (*c_types, *(ctypes.c_void_p,) * entry.hidden_pointers))

    def _check(self, result: tuple[Any, ...], key: str) -> Any:
        """The driver's answer without its status. Raises RuntimeError unless that is success (0)."""
        status, *rest = result
        if int(status) != 0:
            raise RuntimeError(f"CUDA driver: {getattr(status, 'name', status)} while loading or launching {key}")
        return rest[0] if rest else None


def _cuda_driver() -> Any:
    from cuda.bindings import driver

    return driver


def _c_type_of(kind: str) -> Any:
    return ctypes.c_void_p if kind.startswith("*") else _C_TYPES[kind.removesuffix(":16")]


def _value_of(argument: Any) -> int | float:
    if not isinstance(argument, torch.Tensor):
        return argument  # type: ignore[no-any-return]
    pointer = int(argument.data_ptr())
    assert pointer % POINTER_ALIGNMENT == 0, (
        f"a kernel argument at {pointer:#x} is not {POINTER_ALIGNMENT}-byte aligned"
    )
    return pointer
