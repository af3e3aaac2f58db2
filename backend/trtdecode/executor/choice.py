"""Which executor serves a model on this machine, why, and what would change that. Pure: facts in, choice out."""

from __future__ import annotations

from dataclasses import dataclass

from trtdecode.config import ServingConfig
from trtdecode.errors import ConfigError
from trtdecode.executor.devices import Devices
from trtdecode.manifest import Manifest
from trtdecode.support import engine_precision_of


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """One log line, and in the control socket's status: a Python backend cannot add to Triton's own metadata."""

    executor: str  # "openvino", "tensorrt" or "torch"
    device: str  # "cpu" or "cuda:N"; "cuda" where ranks have one each
    reason: str
    alternative: str  # what would change the choice

    def __str__(self) -> str:
        return f"executor {self.executor} on {self.device}: {self.reason}; {self.alternative}"


def choose_executor(
    config: ServingConfig, manifest: Manifest, devices: Devices, *, device_kind: str, device_id: int
) -> ExecutorChoice:
    """Applies `executor` and the instance group's kind.

    `auto` takes tensorrt when there is a GPU, a TensorRT flavour and engines for both; torch on CUDA when only torch
    is there; openvino otherwise.

    Args:
        device_kind: Triton's instance kind: "CPU", "GPU" or "MODEL", with or without "KIND_".
        device_id: the GPU's ordinal; ignored on a CPU.

    Raises:
        ConfigError: KIND_GPU without that GPU, or an executor that cannot run on the kind: never a silent CPU run.
    """
    kind = device_kind.upper().removeprefix("KIND_")
    if kind not in ("CPU", "GPU", "MODEL"):
        raise ConfigError(f"instance_group kind: {device_kind!r} is not one of KIND_CPU, KIND_GPU, KIND_MODEL")
    ordinal = max(device_id, 0)
    if kind == "GPU" and ordinal >= len(devices.gpu_sms):
        found = devices.why_no_gpu or f"GPUs found: {len(devices.gpu_sms)}"
        raise ConfigError(
            f"instance_group kind: KIND_GPU asks for GPU {ordinal}, but {found}; "
            "use KIND_CPU to serve this model on the CPU"
        )
    on_gpu = kind == "GPU" or (kind == "MODEL" and ordinal < len(devices.gpu_sms))
    if manifest.ranks.num_ranks > 1:
        return _split_choice(config, manifest, devices, kind)
    if config.executor != "auto":
        return _asked_for(config.executor, devices, kind, f"cuda:{ordinal}" if on_gpu else "cpu")
    if not on_gpu:
        return _cpu_choice(kind, devices)
    return _gpu_choice(config, manifest, devices, kind, ordinal)


def _split_choice(config: ServingConfig, manifest: Manifest, devices: Devices, kind: str) -> ExecutorChoice:
    """For a version of several ranks: torch on each, on GPUs where KIND_MODEL allows and there are any; TensorRT where
    it is asked for."""
    layout = manifest.ranks
    if config.executor == "openvino":
        raise ConfigError(
            f"executor: openvino runs on one rank, but the version is split ({layout}); "
            "use executor torch, or import it again without a split"
        )
    if config.executor == "tensorrt" and layout.pipeline_parallel_size > 1:
        raise ConfigError(
            f"executor: tensorrt runs tensor-parallel ranks, but the version has stages ({layout}); "
            "use executor torch, or import it again with pipeline_parallel_size 1"
        )
    if kind == "GPU":
        raise ConfigError(
            f"instance_group kind: KIND_GPU is one instance a GPU, but the version is split ({layout}); use KIND_MODEL"
        )
    if not devices.has_torch:
        raise ConfigError(f"the version is split ({layout}), which needs torch; pip install 'trtdecode[torch]'")
    reason = f"the version is split ({layout})"
    if config.executor == "tensorrt":
        return _asked_for("tensorrt", devices, kind, "cuda" if kind == "MODEL" and devices.gpu_sms else "cpu")
    if kind == "MODEL" and devices.gpu_sms:
        alternative = "executor tensorrt would run the ranks' engines, KIND_CPU would leave the GPUs alone"
        return ExecutorChoice("torch", "cuda", f"{reason}, GPUs are here", alternative)
    return ExecutorChoice("torch", "cpu", reason, "GPUs with KIND_MODEL would change it")


def _asked_for(executor: str, devices: Devices, kind: str, device: str) -> ExecutorChoice:
    """The executor the configuration names, if it can run there."""
    reason = f"parameters set executor {executor}"
    if executor == "openvino":
        if kind == "GPU":
            raise ConfigError(
                "executor: openvino runs on the CPU, but instance_group says KIND_GPU; "
                "use KIND_CPU, or executor tensorrt or torch"
            )
        return ExecutorChoice("openvino", "cpu", reason, "executor auto would choose by machine")
    if executor == "tensorrt" and device == "cpu":
        why = devices.why_no_gpu or f"the instance kind is KIND_{kind}"
        raise ConfigError(f"executor: tensorrt needs a GPU, but {why}; use KIND_GPU on a GPU machine, or executor auto")
    if executor == "tensorrt" and not devices.tensorrt_flavour:
        raise ConfigError("executor: tensorrt is not installed; pip install 'trtdecode[engines]', or use executor auto")
    if executor == "torch" and not devices.has_torch:
        raise ConfigError("executor: torch is not installed; pip install 'trtdecode[torch]', or use executor auto")
    return ExecutorChoice(executor, device, reason, "executor auto would choose by machine")


def _cpu_choice(kind: str, devices: Devices) -> ExecutorChoice:
    if devices.gpu_sms:
        return ExecutorChoice("openvino", "cpu", f"the instance kind is KIND_{kind}", "KIND_GPU would use the GPU")
    return ExecutorChoice("openvino", "cpu", devices.why_no_gpu or "no GPU", "a GPU with KIND_GPU would change it")


def _gpu_choice(config: ServingConfig, manifest: Manifest, devices: Devices, kind: str, ordinal: int) -> ExecutorChoice:
    device, sm = f"cuda:{ordinal}", devices.gpu_sms[ordinal]
    missing = _why_not_tensorrt(config, manifest, devices, sm)
    if not missing:
        reason = f"a GPU (SM {sm}), {devices.tensorrt_flavour} and engines for both are here"
        return ExecutorChoice("tensorrt", device, reason, "executor torch or openvino would override it")
    if devices.has_torch:
        return ExecutorChoice(
            "torch", device, f"a GPU (SM {sm}) and torch are here", f"tensorrt would run, but {missing}"
        )
    if kind == "GPU":
        raise ConfigError(
            f"instance_group kind: KIND_GPU, but {missing}, and torch is not installed; "
            "do the former, pip install 'trtdecode[torch]', or use KIND_CPU"
        )
    return ExecutorChoice("openvino", "cpu", f"no runtime for the GPU (SM {sm})", f"tensorrt would run, but {missing}")


def _why_not_tensorrt(config: ServingConfig, manifest: Manifest, devices: Devices, sm: int) -> str:
    """What keeps TensorRT from serving, as a phrase with its remedy; empty when nothing does."""
    flavour = devices.tensorrt_flavour
    if not flavour:
        return "no TensorRT flavour is installed (pip install 'trtdecode[engines]')"
    wanted = engine_precision_of(config.precision)
    fits = any(
        engines.sm == sm and engines.flavour == flavour and wanted in ("auto", engines.precision)
        for engines in manifest.engines
    )
    if not fits and not config.build_missing_engines:
        precision = "" if wanted == "auto" else f" in {wanted}"
        return f"the version has no {flavour} engines for SM {sm}{precision} (`trtdecode build`)"
    return ""
