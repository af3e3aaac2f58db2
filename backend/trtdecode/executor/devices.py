"""What this machine offers an executor: GPUs (asked of the driver itself, without torch) and installed runtimes."""

from __future__ import annotations

import ctypes
import importlib.util
from dataclasses import dataclass

from trtdecode.support import TENSORRT, TENSORRT_RTX

_MAJOR, _MINOR = 75, 76  # CUdevice_attribute: COMPUTE_CAPABILITY_MAJOR and _MINOR


@dataclass(frozen=True, slots=True)
class Devices:
    """Facts that the choice of an executor rests on; tests make their own."""

    gpu_sms: tuple[int, ...] = ()  # compute capability of each visible GPU, 89 for 8.9
    tensorrt_flavour: str = ""  # "tensorrt", "tensorrt-rtx", or "" when neither is installed
    has_torch: bool = False
    why_no_gpu: str = ""


def find_devices() -> Devices:
    """Asks the CUDA driver for GPUs and the import system for runtimes; imports nothing heavy."""
    sms, why = _gpu_sms()
    flavours = {"tensorrt": TENSORRT, "tensorrt_rtx": TENSORRT_RTX}  # the data-centre build first
    installed = [flavour for module, flavour in flavours.items() if _is_installed(module)]
    return Devices(sms, installed[0] if installed else "", _is_installed("torch"), why)


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _gpu_sms() -> tuple[tuple[int, ...], str]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (), "no NVIDIA driver (libcuda.so.1 not found)"
    if code := driver.cuInit(0):
        return (), f"the NVIDIA driver reports no usable GPU (cuInit returned {code})"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    sms = tuple(_sm(driver, ordinal) for ordinal in range(count.value))
    return sms, "" if sms else "no GPU is visible (CUDA_VISIBLE_DEVICES?)"


def _sm(driver: ctypes.CDLL, ordinal: int) -> int:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return 10 * major.value + minor.value
