"""Makes the executors that run on a GPU; imported only where one was chosen."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtdecode import support
from trtdecode.config import ServingConfig
from trtdecode.errors import ManifestError
from trtdecode.executor.base import Executor
from trtdecode.executor.cuda_device import Device, TorchCudaDevice
from trtdecode.executor.device_step import StepLimits
from trtdecode.executor.engine_files import load_engine_steps
from trtdecode.executor.tensorrt_executor import TensorRtExecutor
from trtdecode.executor.tensorrt_runtime import Runtime, TensorRtRuntime
from trtdecode.executor.torch_cuda_executor import TorchCudaExecutor
from trtdecode.manifest import EngineSet, Manifest, ModelSpec, read_manifest, verify_files

if TYPE_CHECKING:
    from trtdecode.executor.ranks.links import RankLinks

log = logging.getLogger(__name__)

#: Share of free device memory for the KV pool: all that remains after weights, contexts and captured graphs, less a
#: margin for other users of the GPU.
DEFAULT_FRACTION = 0.9
#: `precision: auto` among the engines that a version has for this GPU: the nearest to the imported weights first.
ENGINE_PRECISIONS = ("fp16", "bf16", "fp8", "int8_weight", "int8", "int4")


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """`optimization.cuda` and the TensorRT accelerator of config.pbtxt."""

    graphs: bool = True
    graph_batch_sizes: tuple[int, ...] = ()  # empty: the default ladder
    busy_wait: bool = False
    engine_precision: str = ""  # precision_mode, where `parameters` do not name a precision


def torch_cuda_executor(
    config: ServingConfig, spec: ModelSpec, graph_path: Path, device_name: str, options: GpuOptions
) -> Executor:
    """The interpreted graph with our kernels on `device_name`."""
    dtype = "f16" if config.compute_precision == "auto" else config.compute_precision
    return TorchCudaExecutor(
        graph_path,
        device=TorchCudaDevice(device_name, busy_wait=options.busy_wait),
        limits=limits_of(config, spec),
        dtype=dtype,
        kv_cache_precision=_kv_precision(config),
        kv_cache_bytes=config.kv_cache_bytes,
        kv_cache_fraction=config.kv_cache_fraction or DEFAULT_FRACTION,
        swap_space_bytes=config.swap_space_bytes,
        graphs=options.graphs,
        graph_batch_sizes=options.graph_batch_sizes,
    )


def tensorrt_executor(
    config: ServingConfig,
    manifest: Manifest,
    version_dir: Path,
    device_name: str,
    flavour: str,
    options: GpuOptions,
) -> Executor:
    """Engines of the version on `device_name`, built first where the configuration allows it.

    Raises:
        ManifestError: the engines or their tables are not what the manifest and `segments.json` say.
        UnsupportedError: the flavour is not installed, or not for this GPU.
    """
    device = TorchCudaDevice(device_name, busy_wait=options.busy_wait)
    return tensorrt_executor_on(
        device,
        TensorRtRuntime(flavour, runtime_cache_file(version_dir, device.sm)),
        config,
        manifest,
        version_dir,
        options,
    )


def tensorrt_executor_on(
    device: Device,
    runtime: Runtime,
    config: ServingConfig,
    manifest: Manifest,
    version_dir: Path,
    options: GpuOptions,
    links: RankLinks | None = None,
) -> Executor:
    """`tensorrt_executor` on a given device and runtime; with `links` for one rank of several."""
    precision = engine_precision(config, options, manifest.engines, device.sm, runtime.flavour)
    steps = load_engine_steps(
        version_dir,
        manifest,
        precision,
        device.sm,
        flavour=runtime.flavour,
        builder_version=runtime.version,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        build_missing=config.build_missing_engines,
        report=log.info,
    )
    if config.build_missing_engines:
        manifest = read_manifest(version_dir)  # a build may just have changed it
    directory = support.engine_directory(precision, device.sm)
    # The engines' own digests were just compared with segments.json; the rest of the folder with the manifest.
    rest = {
        name
        for name in manifest.files
        if name.startswith(f"{directory}/") and name.rpartition("/")[2] not in steps.engines
    }
    verify_files(version_dir, manifest, names=rest, digests=config.verify_checksums)
    return TensorRtExecutor(
        version_dir / directory,
        steps,
        device=device,
        runtime=runtime,
        limits=limits_of(config, manifest.spec),
        kv_cache_precision=_kv_precision(config),
        kv_cache_bytes=config.kv_cache_bytes,
        kv_cache_fraction=config.kv_cache_fraction or DEFAULT_FRACTION,
        swap_space_bytes=config.swap_space_bytes,
        graphs=options.graphs,
        graph_batch_sizes=options.graph_batch_sizes,
        links=links,
    )


def engine_precision(
    config: ServingConfig, options: GpuOptions, engines: Iterable[EngineSet], sm: int, flavour: str
) -> str:
    """The precision to serve: the configured one, else the first of ENGINE_PRECISIONS that is built for this GPU.

    Raises:
        ManifestError: nothing is built for it and nothing may be built; names what there is.
    """
    wanted = options.engine_precision if config.precision == "auto" else config.precision
    if wanted:
        return support.engine_precision_of(wanted)
    built = list(engines)
    fitting = {engine.precision for engine in built if engine.sm == sm and engine.flavour == flavour}
    for precision in ENGINE_PRECISIONS:
        if precision in fitting or (config.build_missing_engines and not fitting):
            return precision
    present = ", ".join(sorted(f"{engine.precision} for SM {engine.sm} ({engine.flavour})" for engine in built))
    raise ManifestError(
        f"engines: none for SM {sm} with {flavour} (present: {present or 'none'}); "
        f"build with `trtdecode build VERSION_DIR --precision fp16 --sm {sm} --flavour {flavour}`"
    )


def limits_of(config: ServingConfig, spec: ModelSpec) -> StepLimits:
    """The largest step that the scheduler can make under this configuration."""
    context = min(config.max_context_len or spec.max_context_len, spec.max_context_len)
    return StepLimits(config.max_num_seqs, config.max_num_batched_tokens, context)


def runtime_cache_file(version_dir: Path, sm: int, module: Path = Path("/sys/module/nvidia/version")) -> Path:
    """Where RTX keeps kernels that it compiled at run time: of use on this GPU type with this driver only."""
    try:
        driver = module.read_text("ascii").strip()
    except OSError:
        driver = "unknown"
    return version_dir / "runtime_cache" / f"sm{sm}-driver{driver}.bin"


def _kv_precision(config: ServingConfig) -> str:
    """The executors' word for "as computed" is the empty string."""
    return "" if config.kv_cache_precision == "auto" else config.kv_cache_precision
