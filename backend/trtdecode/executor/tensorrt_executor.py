"""The TensorRT executor: engines between our attention kernels, whole decode steps as CUDA graphs.

Load order: manifest and engine records, engines and their contexts, tables, KV pool from what memory is left, one
warm-up, captures. Nothing is allocated on the device after that, except by steps that want prompt logprobs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtdecode.errors import ConfigError, ManifestError
from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.base import Batch, BatchResult
from trtdecode.executor.cuda_graphs import graph_sizes
from trtdecode.executor.device_pages import DEFAULT_BLOCK_SIZE, KernelAttention, PagePool
from trtdecode.executor.device_runner import DeviceRunner
from trtdecode.executor.device_step import StepBuffer, StepLimits
from trtdecode.executor.engine_pass import EnginePass
from trtdecode.executor.engine_steps import TABLES_FILE, EngineSteps, SeamStep
from trtdecode.executor.value_buffers import torch_type

if TYPE_CHECKING:
    import torch

    from trtdecode.executor.cuda_device import Device
    from trtdecode.executor.ranks.links import RankLinks
    from trtdecode.executor.tensorrt_runtime import Runtime

log = logging.getLogger(__name__)


class TensorRtExecutor:
    """See `base.Executor`.

    Args:
        directory: an engine folder that was checked against the manifest (`engine_files.load_engine_steps`).
        steps: its content.
        kv_cache_precision: "f16", "bf16", "fp8" or "int8"; "" is the type that the engines give attention.
        kv_cache_bytes: size of the block pool; 0 takes `kv_cache_fraction` of what is free once all else is loaded.
        graphs: capture decode steps.
        graph_batch_sizes: which (`optimization.cuda.graph_spec`); empty for the default ladder.
        links: to the other tensor-parallel ranks, where the engines are one rank's part.

    Raises:
        ManifestError: an engine or the tables do not load.
        UnsupportedError: a KV precision that the GPU has not, or an engine that cannot be captured.
        ConfigError: limits beyond what the engines were built for, or a pool smaller than one block.
    """

    name = "tensorrt"
    chooses_tokens = True

    def __init__(
        self,
        directory: Path,
        steps: EngineSteps,
        *,
        device: Device,
        runtime: Runtime,
        limits: StepLimits,
        kv_cache_precision: str = "",
        kv_cache_bytes: int = 0,
        kv_cache_fraction: float = 0.9,
        swap_space_bytes: int = 0,
        block_size: int = DEFAULT_BLOCK_SIZE,
        graphs: bool = True,
        graph_batch_sizes: Sequence[int] = (),
        links: RankLinks | None = None,
    ) -> None:
        if limits.max_num_batched_tokens > steps.max_tokens:
            raise ConfigError(
                f"max_num_batched_tokens: {limits.max_num_batched_tokens}, but the engines hold {steps.max_tokens} "
                "tokens a step; lower it, or build them again with a larger --max-num-batched-tokens"
            )
        sizes = graph_sizes(limits.max_num_seqs, graph_batch_sizes) if graphs else ()
        specs = attention_seams(steps)
        self._device = device
        self._runtime = runtime
        self._steps = steps
        self.block_size = block_size
        buffer = StepBuffer(device, limits, block_size)
        self._attention = KernelAttention(device, specs, max_num_seqs=limits.max_num_seqs)
        self._pass = EnginePass(
            device,
            runtime,
            directory,
            steps,
            load_tables(directory / TABLES_FILE, steps, device),
            buffer.inputs,
            self._attention,
            max_tokens=limits.max_num_batched_tokens,
            max_rows=limits.max_num_seqs,
            sizes=sizes,
            links=links,
        )
        log.info("tensorrt: %s", self._pass.report)
        self._pool = PagePool(
            device,
            specs,
            precision=kv_cache_precision or query_type(steps),
            num_bytes=kv_cache_bytes or int(kv_cache_fraction * device.free_bytes()),
            block_size=block_size,
            swap_space_bytes=swap_space_bytes,
        )
        self._attention.use(self._pool)
        self.num_blocks = self._pool.num_blocks
        self.num_host_blocks = self._pool.num_host_blocks
        self._runner = DeviceRunner(
            device, buffer, self._pool, self._pass, max_num_seqs=limits.max_num_seqs, sizes=sizes
        )
        self._runner.prepare()
        runtime.save_cache()  # the kernels that the warm-up compiled

    def execute(self, batch: Batch) -> BatchResult:
        return self._runner.execute(batch)

    def describe(self) -> dict[str, str]:
        return {
            "device": str(self._device.torch_device),
            "compute_precision": self._steps.precision,
            "engines": f"{self._runtime.flavour} {self._runtime.version}, SM {self._steps.sm}",
            "contexts": str(self._pass.report),
            **self._pool.describe(),
            **self._runner.describe(),
        }

    def close(self) -> None:
        self._runner.close()
        self._pool.layers.clear()


def attention_seams(steps: EngineSteps) -> dict[str, AttentionSpec]:
    """The attributes of each layer's attention, by node name, in order of layers."""
    return {
        step.name: AttentionSpec.from_attributes(step.attributes, step.name)
        for step in steps.steps
        if isinstance(step, SeamStep) and step.operator == "PagedAttention"
    }


def query_type(steps: EngineSteps) -> str:
    """The type in which engines hand queries to attention: what a KV cache stores by default."""
    for step in steps.steps:
        if isinstance(step, SeamStep) and step.operator == "PagedAttention":
            return steps.tensors[step.inputs[0]].dtype
    raise ManifestError("segments.json has no PagedAttention step; build the engines again with `trtdecode build`")


def load_tables(path: Path, steps: EngineSteps, device: Device) -> dict[str, torch.Tensor]:
    """The tables outside the engines, on the device.

    Raises:
        ManifestError: missing, unreadable, or not of the types and shapes that the steps say.
    """
    from safetensors import SafetensorError, safe_open

    rebuild = "build the engines again with `trtdecode build`"
    tables = {}
    try:
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                tensor, spec = file.get_tensor(name), steps.tensors[name]
                if tuple(tensor.shape) != spec.shape or tensor.dtype != torch_type(spec.dtype):
                    raise ManifestError(
                        f"{path}: table {name!r} is {tensor.dtype} {list(tensor.shape)}, segments.json says "
                        f"{spec.dtype} {list(spec.shape)}; {rebuild}"
                    )
                tables[name] = _to_device(device, tensor)
    except (OSError, SafetensorError, KeyError) as error:
        raise ManifestError(f"{path}: not readable ({error}); {rebuild}") from error
    return tables


def _to_device(device: Device, tensor: torch.Tensor) -> torch.Tensor:
    target = device.allocate(tensor.shape, tensor.dtype)
    device.run(lambda: target.copy_(tensor))
    return target
