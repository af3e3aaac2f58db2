"""The torch executor on CUDA: the same interpreted graph, with our attention kernels and CUDA graphs.

It serves where there is a GPU and torch but no TensorRT, and it checks everything of the GPU side but the engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtdecode.executor.base import (
    GRAPH_OUTPUT,
    HIDDEN_INPUT,
    HIDDEN_OUTPUT,
    OPERATOR_DOMAIN,
    Batch,
    BatchResult,
)
from trtdecode.executor.cuda_graphs import StepOutput, graph_sizes
from trtdecode.executor.device_pages import DEFAULT_BLOCK_SIZE, KernelAttention, PagePool
from trtdecode.executor.device_runner import DeviceRunner, output_of
from trtdecode.executor.device_step import DeviceStep, StepBuffer, StepLimits
from trtdecode.executor.onnx_graph import Node, attention_specs, read_graph
from trtdecode.executor.torch_executor import torch_dtype

if TYPE_CHECKING:
    import torch

    from trtdecode.executor.cuda_device import Device
    from trtdecode.executor.ranks.links import RankLinks


class TorchCudaExecutor:
    """See `base.Executor`.

    Args:
        graph_path: the ONNX file, weights beside it.
        device: where it runs.
        dtype: of weights and computation: "f32", "f16" or "bf16".
        kv_cache_precision: a key of `kernels.pages.PAGE_DTYPES`; "" is `dtype`.
        kv_cache_bytes: size of the block pool; 0 takes `kv_cache_fraction` of what is free after the weights.
        graphs: capture decode steps.
        graph_batch_sizes: which (`optimization.cuda.graph_spec`); empty for the default ladder.
        links: to the other ranks, where the graph is one rank's part; `hidden_size` is then the model's.

    Raises:
        UnsupportedError: an operator, or a KV precision that the GPU has not.
        ManifestError: the graph cannot be read.
        ConfigError: an unknown precision, a captured size beyond max_num_seqs, or a pool smaller than one block.
    """

    name = "torch"
    chooses_tokens = True

    def __init__(
        self,
        graph_path: Path,
        *,
        device: Device,
        limits: StepLimits,
        dtype: str = "f16",
        kv_cache_precision: str = "",
        kv_cache_bytes: int = 0,
        kv_cache_fraction: float = 0.9,
        swap_space_bytes: int = 0,
        block_size: int = DEFAULT_BLOCK_SIZE,
        graphs: bool = True,
        graph_batch_sizes: Sequence[int] = (),
        links: RankLinks | None = None,
        hidden_size: int = 0,
    ) -> None:
        from trtdecode.executor.graph_interpreter import GraphInterpreter

        graph = read_graph(graph_path)
        specs = attention_specs(graph)
        sizes = graph_sizes(limits.max_num_seqs, graph_batch_sizes) if graphs else ()
        self._dtype = dtype
        self._device = device
        self._graph_inputs = graph.inputs
        self._interpreter = GraphInterpreter(
            graph,
            device=device.torch_device,
            dtype=torch_dtype("precision", dtype),
            seam_operators={
                f"{OPERATOR_DOMAIN}::PagedAttention": self._attend,
                **({f"{OPERATOR_DOMAIN}::AllReduce": lambda _node, part: links.all_reduce(part)} if links else {}),
            },
        )
        self._links = links
        self._hidden_size = hidden_size if HIDDEN_INPUT in graph.inputs else 0
        buffer = StepBuffer(device, limits, block_size)
        self._attention = KernelAttention(device, specs, max_num_seqs=limits.max_num_seqs)
        num_bytes = kv_cache_bytes or int(kv_cache_fraction * device.free_bytes())
        precision = kv_cache_precision or dtype
        self._pool = PagePool(
            device,
            specs,
            precision=precision,
            num_bytes=num_bytes,
            block_size=block_size,
            swap_space_bytes=swap_space_bytes,
        )
        self._attention.use(self._pool)
        self.block_size = block_size
        self.num_blocks = self._pool.num_blocks
        self.num_host_blocks = self._pool.num_host_blocks
        self._step: DeviceStep | None = None
        self._runner = DeviceRunner(
            device,
            buffer,
            self._pool,
            self._forward,
            max_num_seqs=limits.max_num_seqs,
            sizes=sizes,
        )
        self._runner.prepare()

    def execute(self, batch: Batch) -> BatchResult:
        return self._runner.execute(batch)

    def describe(self) -> dict[str, str]:
        return {
            "device": str(self._device.torch_device),
            "compute_precision": self._dtype,
            **self._pool.describe(),
            **self._runner.describe(),
        }

    def close(self) -> None:
        self._runner.close()
        self._pool.layers.clear()

    def _forward(self, step: DeviceStep) -> StepOutput:
        """All device work of one step."""
        self._step = step
        ragged = step.ragged
        known = {
            "input_ids": step.input_ids,
            "positions": step.positions,
            "logit_indices": step.logit_indices,
            "query_begins": ragged.query_begins,
            "block_indices": ragged.block_indices,
            "block_begins": ragged.block_begins,
        }
        # The seam takes lengths and caches from the step and the pool; the graph only names them.
        feeds = {name: known.get(name, ragged.context_lens) for name in self._graph_inputs}
        if self._links is not None and self._hidden_size:
            feeds[HIDDEN_INPUT] = self._links.receive(self._empty_hidden(step.num_tokens))
        outputs = self._interpreter.run(feeds)
        if self._links is not None and HIDDEN_OUTPUT in outputs:
            hidden = outputs[HIDDEN_OUTPUT]
            self._links.send(hidden)
            return output_of(hidden[step.logit_indices, :1])  # of the right length; nobody reads it
        return output_of(outputs[GRAPH_OUTPUT])

    def _empty_hidden(self, num_tokens: int) -> torch.Tensor:
        import torch

        dtype = torch_dtype("precision", self._dtype)
        return torch.empty((num_tokens, self._hidden_size), dtype=dtype, device=self._device.torch_device)

    def _attend(
        self, node: Node, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_batch: torch.Tensor
    ) -> torch.Tensor:
        import torch

        assert self._step is not None, "attention runs inside a step"
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        return self._attention(node.name, self._step, query, key, value, output)
