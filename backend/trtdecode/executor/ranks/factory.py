"""Makes the executor of a version that is split over ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtdecode.config import ServingConfig
from trtdecode.errors import ConfigError, LoadError
from trtdecode.executor.base import Executor
from trtdecode.executor.choice import ExecutorChoice
from trtdecode.executor.device_step import StepLimits
from trtdecode.executor.devices import Devices
from trtdecode.executor.machine import memory_bytes, usable_physical_cores
from trtdecode.executor.ranks.group import RankGroup, RankLost
from trtdecode.executor.ranks.parallel_executor import ParallelExecutor
from trtdecode.executor.ranks.task import EngineTask, RankTask
from trtdecode.manifest import Manifest, rank_dir, read_manifest, verify_files

if TYPE_CHECKING:
    from trtdecode.executor.gpu_factory import GpuOptions

log = logging.getLogger(__name__)

#: `precision: auto` takes the first that the version has.
_PRECISIONS = ("f32", "bf16", "f16", "int8", "int4")
#: Shares of RAM (all ranks together) and of a GPU's free memory for the KV pools where the configuration names none.
_CPU_FRACTION, _GPU_FRACTION = 0.1, 0.9


def parallel_executor(
    config: ServingConfig,
    manifest: Manifest,
    version_dir: Path,
    choice: ExecutorChoice,
    devices: Devices,
    gpu_options: GpuOptions | None,
) -> Executor:
    """Checks every rank's files, then starts the ranks.

    Raises:
        ConfigError: no such precision, too few GPUs, or Ray is missing.
        ManifestError: a rank's files are not what its manifest says.
        LoadError: the ranks did not come up.
    """
    engines = _engine_task(config, devices, gpu_options) if choice.executor == "tensorrt" else None
    tasks = rank_tasks(config, manifest, version_dir, choice.device, gpu_options, engines)
    starter = rank_starter(config, len(tasks), choice.device, len(devices.gpu_sms))
    try:
        return ParallelExecutor(lambda: start_ranks(starter, tasks), manifest.ranks)
    except RankLost as error:
        raise LoadError(f"{error}; the log has what it wrote before it ended") from error


def rank_tasks(
    config: ServingConfig,
    manifest: Manifest,
    version_dir: Path,
    device: str,
    gpu_options: GpuOptions | None,
    engines: EngineTask | None = None,
) -> list[RankTask]:
    """What each rank is to do; a graph's files are compared with the rank's manifest here, engines' by the rank."""
    num_ranks, spec = manifest.ranks.num_ranks, manifest.spec
    on_gpu = device != "cpu"
    dtype = ("f16" if on_gpu else "f32") if config.compute_precision == "auto" else config.compute_precision
    num_bytes = config.kv_cache_bytes
    if not on_gpu and not num_bytes:
        num_bytes = int((config.kv_cache_fraction or _CPU_FRACTION) * memory_bytes()) // num_ranks
    context = min(config.max_context_len or spec.max_context_len, spec.max_context_len)
    tasks = []
    for rank in range(num_ranks):
        folder = rank_dir(version_dir, rank)
        own = read_manifest(folder)
        present = [name for name in _PRECISIONS if name in own.graphs]
        by_default = config.precision == "auto" or engines is not None  # then the precision is the engines'
        graph = own.graph_file((present[0] if present else "f32") if by_default else config.precision)
        if engines is None:
            verify_files(folder, own, names={graph, f"{graph}.data"}, digests=config.verify_checksums)
        tasks.append(
            RankTask(
                rank=rank,
                layout=manifest.ranks,
                graph_path=(folder / graph).resolve(),
                hidden_size=spec.hidden_size,
                device=f"cuda:{rank}" if on_gpu else "cpu",
                dtype=dtype,
                kv_dtype="" if config.kv_cache_precision == "auto" else config.kv_cache_precision,
                kv_cache_bytes=num_bytes,
                kv_cache_fraction=config.kv_cache_fraction or _GPU_FRACTION,
                num_threads=max(1, (config.num_threads or usable_physical_cores()) // num_ranks),
                limits=StepLimits(config.max_num_seqs, config.max_num_batched_tokens, context),
                graphs=gpu_options.graphs if gpu_options else True,
                graph_batch_sizes=gpu_options.graph_batch_sizes if gpu_options else (),
                busy_wait=gpu_options.busy_wait if gpu_options else False,
                engines=engines,
            )
        )
    return tasks


def _engine_task(config: ServingConfig, devices: Devices, gpu_options: GpuOptions | None) -> EngineTask:
    from trtdecode.executor.gpu_factory import GpuOptions

    return EngineTask(devices.tensorrt_flavour, config, gpu_options or GpuOptions())


def rank_starter(config: ServingConfig, num_ranks: int, device: str, num_gpus: int) -> str:
    """mp where all ranks fit on this machine, else ray. Raises ConfigError where mp is asked for and they do not."""
    fits = device == "cpu" or num_gpus >= num_ranks
    if config.distributed_executor_backend == "mp" and not fits:
        raise ConfigError(
            f"distributed_executor_backend: mp starts {num_ranks} ranks on this machine, which has {num_gpus} GPUs; "
            "use ray with more machines, or import with fewer ranks"
        )
    if config.distributed_executor_backend != "auto":
        return config.distributed_executor_backend
    return "mp" if fits else "ray"


def start_ranks(starter: str, tasks: Sequence[RankTask]) -> RankGroup:
    """Starts all ranks and waits for them. Raises RankLost, ConfigError."""
    log.info("starting %d ranks with %s", len(tasks), starter)
    if starter == "ray":
        from trtdecode.executor.ranks.ray_ranks import RayRanks

        return RayRanks(tasks)
    from trtdecode.executor.ranks.spawned_ranks import SpawnedRanks

    return SpawnedRanks(tasks)
