"""What runs in a rank's process: its executor, and its links to the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdecode.executor.base import Batch, BatchResult, Executor
from trtdecode.executor.ranks.task import EngineTask, RankFacts, RankTask
from trtdecode.manifest import read_manifest

if TYPE_CHECKING:
    from trtdecode.executor.cuda_device import Device
    from trtdecode.executor.ranks.links import RankLinks


class RankWorker:
    """One rank. `init_method`: see `DistributedLinks`; the constructor returns once all ranks have met."""

    def __init__(self, task: RankTask, init_method: str) -> None:
        import torch

        from trtdecode.executor.ranks.links import DistributedLinks

        device = torch.device(task.device)
        if device.type == "cpu":
            torch.set_num_threads(task.num_threads)
        self._task = task
        self._links = DistributedLinks(task.rank, task.layout, init_method, device)
        self._executor = rank_executor(task, self._links)

    def facts(self) -> RankFacts:
        made = self._executor
        return RankFacts(made.block_size, made.num_blocks, made.chooses_tokens, made.describe())

    def execute(self, batch: Batch) -> BatchResult | None:
        """Runs this rank's part of a step; the answering rank returns the result."""
        result = self._executor.execute(batch)
        return result if self._task.answers else None

    def close(self) -> None:
        self._executor.close()
        self._links.close()


def rank_executor(task: RankTask, links: RankLinks) -> Executor:
    """One rank's executor: torch on its CPU or its GPU, or its TensorRT engines."""
    if task.device == "cpu":
        from trtdecode.executor.torch_executor import TorchExecutor

        return TorchExecutor(
            task.graph_path,
            kv_cache_bytes=task.kv_cache_bytes,
            dtype=task.dtype,
            kv_dtype=task.kv_dtype,
            links=links,
            hidden_size=task.hidden_size,
        )
    from trtdecode.executor.cuda_device import TorchCudaDevice

    if task.engines is not None:
        return _engine_executor(task, task.engines, TorchCudaDevice(task.device, busy_wait=task.busy_wait), links)
    from trtdecode.executor.torch_cuda_executor import TorchCudaExecutor

    return TorchCudaExecutor(
        task.graph_path,
        device=TorchCudaDevice(task.device, busy_wait=task.busy_wait),
        limits=task.limits,
        dtype=task.dtype,
        kv_cache_precision=task.kv_dtype,
        kv_cache_bytes=task.kv_cache_bytes,
        kv_cache_fraction=task.kv_cache_fraction,
        graphs=task.graphs,
        graph_batch_sizes=task.graph_batch_sizes,
        links=links,
        hidden_size=task.hidden_size,
    )


def _engine_executor(task: RankTask, engines: EngineTask, device: Device, links: RankLinks) -> Executor:
    from trtdecode.executor.gpu_factory import runtime_cache_file, tensorrt_executor_on
    from trtdecode.executor.tensorrt_runtime import TensorRtRuntime

    folder = task.graph_path.parent
    return tensorrt_executor_on(
        device,
        TensorRtRuntime(engines.flavour, runtime_cache_file(folder, device.sm)),
        engines.config,
        read_manifest(folder),
        folder,
        engines.options,
        links,
    )
