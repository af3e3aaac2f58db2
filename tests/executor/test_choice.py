"""The rule of `executor: auto`, and every refusal, on machines made of facts."""

from __future__ import annotations

import dataclasses

import pytest
from trtdecode.config import ServingConfig
from trtdecode.errors import ConfigError
from trtdecode.executor.choice import ExecutorChoice, choose_executor
from trtdecode.executor.devices import Devices
from trtdecode.manifest import EngineSet, Manifest, ModelSpec

SPEC = ModelSpec("llama", 1, 8, 2, 1, 4, 16, 32, (0,))
ENGINES = EngineSet("engines/sm89-fp16", "fp16", 89, "tensorrt", "11.4", "key", ("segment_000.engine",), "digest")
MANIFEST = Manifest(spec=SPEC, source="test", graphs={"int8": "decoder.int8.onnx"})
WITH_ENGINES = dataclasses.replace(MANIFEST, engines=(ENGINES,))

NO_GPU = Devices(has_torch=True, why_no_gpu="no NVIDIA driver (libcuda.so.1 not found)")
EVERYTHING = Devices(gpu_sms=(89, 89), tensorrt_flavour="tensorrt", has_torch=True)


def choose(
    devices: Devices, kind: str, manifest: Manifest = WITH_ENGINES, *, device_id: int = 0, **config: object
) -> ExecutorChoice:
    return choose_executor(ServingConfig(**config), manifest, devices, device_kind=kind, device_id=device_id)


def test_a_machine_without_a_gpu_gets_openvino() -> None:
    choice = choose(NO_GPU, "KIND_CPU")
    assert str(choice) == (
        "executor openvino on cpu: no NVIDIA driver (libcuda.so.1 not found); a GPU with KIND_GPU would change it"
    )


def test_gpu_flavour_and_engines_get_tensorrt() -> None:
    choice = choose(EVERYTHING, "GPU", device_id=1)
    assert str(choice) == (
        "executor tensorrt on cuda:1: a GPU (SM 89), tensorrt and engines for both are here; "
        "executor torch or openvino would override it"
    )


@pytest.mark.parametrize(
    ("devices", "manifest", "config", "missing"),
    [
        (
            dataclasses.replace(EVERYTHING, tensorrt_flavour=""),
            WITH_ENGINES,
            {},
            "no TensorRT flavour is installed (pip install 'trtdecode[engines]')",
        ),
        (EVERYTHING, MANIFEST, {}, "the version has no tensorrt engines for SM 89 (`trtdecode build`)"),
        (
            dataclasses.replace(EVERYTHING, gpu_sms=(90,)),
            WITH_ENGINES,
            {},
            "the version has no tensorrt engines for SM 90 (`trtdecode build`)",
        ),
        (
            dataclasses.replace(EVERYTHING, tensorrt_flavour="tensorrt-rtx"),
            WITH_ENGINES,
            {},
            "the version has no tensorrt-rtx engines for SM 89 (`trtdecode build`)",
        ),
        (
            EVERYTHING,
            WITH_ENGINES,
            {"precision": "fp8"},
            "the version has no tensorrt engines for SM 89 in fp8 (`trtdecode build`)",
        ),
    ],
)
def test_a_gpu_with_torch_alone_gets_torch_and_says_what_tensorrt_lacks(
    devices: Devices, manifest: Manifest, config: dict[str, str], missing: str
) -> None:
    choice = choose(devices, "KIND_GPU", manifest, **config)
    assert (choice.executor, choice.device) == ("torch", "cuda:0")
    assert choice.alternative == f"tensorrt would run, but {missing}"


def test_f16_is_what_engines_call_fp16() -> None:
    assert choose(EVERYTHING, "KIND_GPU", WITH_ENGINES, precision="f16").executor == "tensorrt"
    assert choose(EVERYTHING, "KIND_GPU", WITH_ENGINES, precision="fp16").executor == "tensorrt"


def test_missing_engines_do_not_matter_when_they_may_be_built() -> None:
    assert choose(EVERYTHING, "GPU", MANIFEST, build_missing_engines=True).executor == "tensorrt"


def test_kind_cpu_on_a_gpu_machine_is_obeyed() -> None:
    choice = choose(EVERYTHING, "KIND_CPU")
    assert str(choice) == ("executor openvino on cpu: the instance kind is KIND_CPU; KIND_GPU would use the GPU")


@pytest.mark.parametrize(("devices", "executor"), [(NO_GPU, "openvino"), (EVERYTHING, "tensorrt")])
def test_kind_model_takes_what_is_there(devices: Devices, executor: str) -> None:
    assert choose(devices, "KIND_MODEL").executor == executor


@pytest.mark.parametrize(
    ("devices", "device_id", "found"),
    [
        (NO_GPU, 0, "no NVIDIA driver (libcuda.so.1 not found)"),
        (EVERYTHING, 2, "GPUs found: 2"),
    ],
)
def test_kind_gpu_without_that_gpu_is_a_load_error(devices: Devices, device_id: int, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(devices, "KIND_GPU", device_id=device_id)
    assert str(caught.value) == (
        f"instance_group kind: KIND_GPU asks for GPU {device_id}, but {found}; "
        "use KIND_CPU to serve this model on the CPU"
    )


def test_kind_gpu_with_no_runtime_for_it_is_a_load_error() -> None:
    bare = Devices(gpu_sms=(89,))
    with pytest.raises(ConfigError, match=r"no TensorRT flavour is installed .*, and torch is not installed"):
        choose(bare, "KIND_GPU")
    assert choose(bare, "KIND_MODEL").executor == "openvino"


@pytest.mark.parametrize(
    ("executor", "devices", "kind", "message"),
    [
        ("openvino", EVERYTHING, "GPU", "openvino runs on the CPU, but instance_group says KIND_GPU"),
        ("tensorrt", NO_GPU, "CPU", r"tensorrt needs a GPU, but no NVIDIA driver"),
        ("tensorrt", EVERYTHING, "CPU", "tensorrt needs a GPU, but the instance kind is KIND_CPU"),
        ("tensorrt", Devices(gpu_sms=(89,)), "GPU", "tensorrt is not installed; pip install"),
        ("torch", Devices(), "CPU", "torch is not installed; pip install"),
        ("auto", NO_GPU, "KIND_TPU", "'KIND_TPU' is not one of KIND_CPU, KIND_GPU, KIND_MODEL"),
    ],
)
def test_an_executor_that_cannot_run_there_is_refused(executor: str, devices: Devices, kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(devices, kind, executor=executor)


@pytest.mark.parametrize(("kind", "device"), [("CPU", "cpu"), ("GPU", "cuda:0")])
def test_an_executor_that_is_asked_for_is_taken(kind: str, device: str) -> None:
    choice = choose(EVERYTHING, kind, executor="torch")
    assert (choice.executor, choice.device, choice.reason) == ("torch", device, "parameters set executor torch")
