"""The cubin launcher against a driver that records: which file, which shape, which arguments."""

import ctypes
import enum
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trtdecode.errors import ManifestError, UnsupportedError
from trtdecode.kernels.cubin import CubinLauncher, runs_on
from trtdecode.kernels.cubin_manifest import CubinEntry, read_cubin_manifest, write_cubin_manifest
from trtdecode.kernels.launch import RecordingLauncher, variant_of
from trtdecode.kernels.residual_norm import RESIDUAL_RMSNORM, residual_norm

CODE = b"cubin bytes"


class Status(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209


class RecordingDriver:
    """The five driver calls, written down."""

    class CUfunction_attribute:  # noqa: N801 (the driver's name)
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.load_status = Status.CUDA_SUCCESS

    def cuModuleLoadData(self, code: bytes) -> tuple[Any, ...]:  # noqa: N802
        self.calls.append(("load", code))
        return self.load_status, "module"

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[Any, ...]:  # noqa: N802
        self.calls.append(("function", module, name))
        return Status.CUDA_SUCCESS, "function"

    def cuFuncSetAttribute(self, function: str, attribute: int, value: int) -> tuple[Any, ...]:  # noqa: N802
        self.calls.append(("attribute", function, attribute, value))
        return (Status.CUDA_SUCCESS,)

    def cuLaunchKernel(self, *arguments: Any) -> tuple[Any, ...]:  # noqa: N802
        self.calls.append(("launch", *arguments))
        return (Status.CUDA_SUCCESS,)


def rmsnorm_inputs(width: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None, float, torch.Tensor]:
    x = torch.zeros(3, width, dtype=torch.float16)
    return x, x.clone(), torch.ones(width, dtype=torch.float16), None, 1e-6, x.clone()


def entry_for(sm: int, *, shared_bytes: int = 0) -> CubinEntry:
    recorder = RecordingLauncher()
    residual_norm(recorder, *rmsnorm_inputs())
    ((kernel, variant),) = recorder.variants.values()
    return CubinEntry(
        key=variant.key,
        kernel=kernel.name,
        sm=sm,
        file=f"sm{sm}.cubin",
        sha256=hashlib.sha256(CODE).hexdigest(),
        entry_point="_residual_rmsnorm_kernel",
        signature=variant.types,
        constexprs=dict(variant.constexprs),
        num_warps=variant.num_warps,
        num_stages=variant.num_stages,
        shared_bytes=shared_bytes,
        hidden_pointers=2,
        registers=40,
        stack_bytes=0,
        local_bytes=0,
    )


def folder_with(directory: Path, *entries: CubinEntry) -> Path:
    for entry in entries:
        (directory / entry.file).write_bytes(CODE)
    write_cubin_manifest(directory, list(entries), "triton 3.9.0")
    return directory


def test_loads_once_and_passes_every_argument(tmp_path: Path) -> None:
    driver = RecordingDriver()
    launch = CubinLauncher(folder_with(tmp_path, entry_for(90, shared_bytes=60_000)), 90, lambda: 77, driver=driver)
    assert len(launch) == 1
    x, residual, weight, _, epsilon, out = rmsnorm_inputs()
    residual_norm(launch, x, residual, weight, None, epsilon, out)
    residual_norm(launch, x, residual, weight, None, epsilon, out)
    pointers = tuple(tensor.data_ptr() for tensor in (x, residual, weight, out))
    # Pointers, width, row stride, epsilon, then the compiler's two null scratch pointers.
    values = (*pointers, 64, 64, 1e-6, 0, 0)
    pointer, integer, real = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float
    types = (pointer,) * 4 + (integer, integer, real, pointer, pointer)
    launched = ("launch", "function", 3, 1, 1, 32, 1, 1, 60_000, 77, (values, types), 0)
    assert driver.calls == [
        ("load", CODE),
        ("function", "module", b"_residual_rmsnorm_kernel"),
        ("attribute", "function", 8, 60_000),
        launched,
        launched,
    ]


def test_little_shared_memory_needs_no_attribute(tmp_path: Path) -> None:
    driver = RecordingDriver()
    launch = CubinLauncher(folder_with(tmp_path, entry_for(90, shared_bytes=48 * 1024)), 90, lambda: 0, driver=driver)
    residual_norm(launch, *rmsnorm_inputs())
    assert [call[0] for call in driver.calls] == ["load", "function", "launch"]


@pytest.mark.parametrize(
    ("built_for", "sm", "runs"),
    [
        (80, 80, True),
        (80, 86, True),
        (80, 89, True),
        (86, 80, False),
        (80, 90, False),
        (90, 90, True),
        (100, 103, False),
    ],
)
def test_which_cubin_runs_where(built_for: int, sm: int, runs: bool) -> None:
    assert runs_on(built_for, sm) is runs


def test_the_closest_architecture_is_taken(tmp_path: Path) -> None:
    launch = CubinLauncher(
        folder_with(tmp_path, entry_for(80), entry_for(86), entry_for(90)), 89, lambda: 0, driver=RecordingDriver()
    )
    assert [entry.sm for entry in launch._entries.values()] == [86]


def test_another_variant_goes_to_the_fallback_or_is_an_error(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, entry_for(90))
    fallback = RecordingLauncher()
    launch = CubinLauncher(folder, 90, lambda: 0, fallback=fallback, driver=RecordingDriver())
    residual_norm(launch, *rmsnorm_inputs(300))
    assert len(fallback.variants) == 1
    with pytest.raises(UnsupportedError, match=r"no cubin of residual_rmsnorm\(.*aot --model VERSION_DIR --sm 90"):
        residual_norm(CubinLauncher(folder, 90, lambda: 0, driver=RecordingDriver()), *rmsnorm_inputs(300))


def test_a_row_stride_that_is_no_multiple_of_16_is_another_variant() -> None:
    x, residual, weight, _, _, out = rmsnorm_inputs()
    keys = [
        variant_of(RESIDUAL_RMSNORM[1], (x, residual, weight, out, 64, stride, 1e-6), {"BLOCK": 64}).key
        for stride in (64, 72, 80)
    ]
    assert keys[0] == keys[2] != keys[1]
    assert "i32,i32:16,fp32" in keys[0]


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, entry_for(90))
    (folder / "sm90.cubin").write_bytes(b"other")
    with pytest.raises(UnsupportedError, match=r"sm90\.cubin: missing or not the file that cubins\.json lists"):
        residual_norm(CubinLauncher(folder, 90, lambda: 0, driver=RecordingDriver()), *rmsnorm_inputs())


def test_the_drivers_error_is_named(tmp_path: Path) -> None:
    driver = RecordingDriver()
    driver.load_status = Status.CUDA_ERROR_NO_BINARY_FOR_GPU
    with pytest.raises(RuntimeError, match="CUDA_ERROR_NO_BINARY_FOR_GPU while loading or launching residual_rmsnorm"):
        residual_norm(
            CubinLauncher(folder_with(tmp_path, entry_for(90)), 90, lambda: 0, driver=driver), *rmsnorm_inputs()
        )


def test_a_misaligned_pointer_is_caught(tmp_path: Path) -> None:
    launch = CubinLauncher(folder_with(tmp_path, entry_for(90)), 90, lambda: 0, driver=RecordingDriver())
    x, residual, _, _, epsilon, out = rmsnorm_inputs()
    weight = torch.ones(65, dtype=torch.float16)[1:]
    with pytest.raises(AssertionError, match="is not 16-byte aligned"):
        residual_norm(launch, x, residual, weight, None, epsilon, out)


def test_manifest_round_trip_and_its_errors(tmp_path: Path) -> None:
    entries = [entry_for(80), replace(entry_for(90), stack_bytes=8)]
    assert read_cubin_manifest(folder_with(tmp_path, *entries)) == entries
    path = tmp_path / "cubins.json"
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 9'))
    with pytest.raises(ManifestError, match="format_version 9, this trtdecode reads 1"):
        read_cubin_manifest(tmp_path)
    path.write_text('{"format_version": 1, "cubins": [{"key": "x"}]}')
    with pytest.raises(ManifestError, match="not a cubin manifest"):
        read_cubin_manifest(tmp_path)
    path.unlink()
    with pytest.raises(ManifestError, match=r"cubins\.json: not found; compile the cubins again"):
        read_cubin_manifest(tmp_path)
