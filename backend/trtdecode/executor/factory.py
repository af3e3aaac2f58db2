"""Makes the executor that a configuration, a model version and a machine call for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtdecode.config import ServingConfig
from trtdecode.errors import ConfigError, ManifestError
from trtdecode.executor.base import Executor
from trtdecode.executor.choice import ExecutorChoice, choose_executor
from trtdecode.executor.devices import find_devices
from trtdecode.executor.machine import memory_bytes
from trtdecode.manifest import Manifest, RankLayout, verify_files

if TYPE_CHECKING:
    from trtdecode.executor.gpu_factory import GpuOptions

#: Share of RAM for the KV pool when the configuration names neither bytes nor a fraction.
DEFAULT_CPU_FRACTION = 0.1

#: `precision: auto` takes the first that the version has.
_OPENVINO_PRECISIONS = ("int8", "int4", "f32", "f16", "bf16")
_TORCH_PRECISIONS = ("f32", "bf16", "f16", "int8", "int4")


def create_executor(
    config: ServingConfig,
    manifest: Manifest,
    version_dir: Path,
    *,
    device_kind: str,
    device_id: int,
    gpu_options: GpuOptions | None = None,
) -> tuple[Executor, ExecutorChoice]:
    """Chooses, checks the files that will be opened against the manifest, and loads.

    Args:
        device_kind: Triton's instance kind, "CPU", "GPU" or "MODEL".
        device_id: the GPU's ordinal; ignored on a CPU.
        gpu_options: `optimization.cuda` of config.pbtxt; None for the defaults.

    Returns:
        The executor, ready to run, and the choice: log it as one line and put it in the model's metadata.

    Raises:
        ConfigError: KIND_GPU without a GPU, or a precision the executor does not have.
        ManifestError: the version lacks the precision, or its files are not what the manifest says.
        UnsupportedError: the graph or the library version is not supported.
    """
    devices = find_devices()
    check_ranks(config, manifest.ranks)
    choice = choose_executor(config, manifest, devices, device_kind=device_kind, device_id=device_id)
    if manifest.ranks.num_ranks > 1:
        from trtdecode.executor.ranks.factory import parallel_executor

        return parallel_executor(config, manifest, version_dir, choice, devices, gpu_options), choice
    if choice.executor == "openvino":
        return _openvino_executor(config, manifest, version_dir), choice
    if choice.device == "cpu":
        return _torch_executor(config, manifest, version_dir), choice
    from trtdecode.executor.gpu_factory import GpuOptions, tensorrt_executor, torch_cuda_executor

    options = gpu_options or GpuOptions()
    if choice.executor == "tensorrt":
        flavour = devices.tensorrt_flavour
        return tensorrt_executor(config, manifest, version_dir, choice.device, flavour, options), choice
    graph_file = graph_file_of(config, manifest, _TORCH_PRECISIONS)
    verify_graph(config, manifest, version_dir, graph_file)
    return torch_cuda_executor(config, manifest.spec, version_dir / graph_file, choice.device, options), choice


def _openvino_executor(config: ServingConfig, manifest: Manifest, version_dir: Path) -> Executor:
    from trtdecode.executor.openvino_executor import OpenVinoExecutor

    graph_file = graph_file_of(config, manifest, _OPENVINO_PRECISIONS)
    verify_graph(config, manifest, version_dir, graph_file)
    # The other precisions are faster on some CPUs and change answers (see openvino_executor.py), so they are asked for.
    compute = "f32" if config.compute_precision == "auto" else config.compute_precision
    kv_cache = config.kv_cache_precision
    if kv_cache == "auto":
        kv_cache = "f32" if compute == "f32" else "u8"
    return OpenVinoExecutor(
        version_dir / graph_file,
        kv_cache_bytes=_cpu_pool_bytes(config),
        kv_cache_precision=kv_cache,
        compute_precision=compute,
        num_threads=config.num_threads,
        swap_space_bytes=config.swap_space_bytes,
        attention=config.attention,
    )


def _torch_executor(config: ServingConfig, manifest: Manifest, version_dir: Path) -> Executor:
    from trtdecode.executor.torch_executor import TorchExecutor

    graph_file = graph_file_of(config, manifest, _TORCH_PRECISIONS)
    verify_graph(config, manifest, version_dir, graph_file)
    dtype = "f32" if config.compute_precision == "auto" else config.compute_precision
    return TorchExecutor(
        version_dir / graph_file,
        kv_cache_bytes=_cpu_pool_bytes(config),
        dtype=dtype,
        kv_dtype=dtype if config.kv_cache_precision == "auto" else config.kv_cache_precision,
        swap_space_bytes=config.swap_space_bytes,
    )


def check_ranks(config: ServingConfig, ranks: RankLayout) -> None:
    """Raises ConfigError where the configuration asks for another split than the version was imported with."""
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        asked, have = getattr(config, name), getattr(ranks, name)
        if asked not in (0, have):
            raise ConfigError(
                f"parameters.{name}: got {asked}, but the version was imported with {have}; leave it out, or import "
                f"again with `trtdecode import --{name.replace('_', '-')} {asked}`"
            )


def graph_file_of(config: ServingConfig, manifest: Manifest, preference: tuple[str, ...]) -> str:
    """The graph of the configured precision; for `auto` the first of `preference` that the version has."""
    if config.precision != "auto":
        return manifest.graph_file(config.precision)
    present = [precision for precision in preference if precision in manifest.graphs]
    return manifest.graph_file(present[0] if present else preference[0])


def verify_graph(config: ServingConfig, manifest: Manifest, version_dir: Path, graph_file: str) -> None:
    """Checks the graph and its external data, which lies beside it as GRAPH.data."""
    names = {graph_file, f"{graph_file}.data"}
    for name in sorted(names - set(manifest.files)):
        raise ManifestError(
            f"{version_dir / name}: not in the manifest, so it cannot be checked; import the model again"
        )
    verify_files(version_dir, manifest, names=names, digests=config.verify_checksums)


def _cpu_pool_bytes(config: ServingConfig) -> int:
    return config.kv_cache_bytes or int((config.kv_cache_fraction or DEFAULT_CPU_FRACTION) * memory_bytes())
