"""The torch executor: the same graph, interpreted, with plain paged attention.

In float32 on a CPU it is the reference that the other executors are compared with. On CUDA it serves where TensorRT
is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtdecode.errors import ConfigError, ManifestError
from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.base import (
    GRAPH_OUTPUT,
    HIDDEN_INPUT,
    HIDDEN_OUTPUT,
    OPERATOR_DOMAIN,
    Batch,
    BatchResult,
)
from trtdecode.executor.kv_pool import HostBlocks, blocks_in_budget, host_blocks_in_budget
from trtdecode.executor.onnx_graph import Node, OnnxGraph, attention_specs, read_graph

if TYPE_CHECKING:
    import torch

    from trtdecode.executor.ranks.links import RankLinks
    from trtdecode.executor.torch_attention import PagedStep

#: config's names of types, and torch's attribute names
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class TorchExecutor:
    """See `base.Executor`.

    Args:
        graph_path: the ONNX file, weights beside it.
        kv_cache_bytes: size of the block pool.
        block_size: KV slots a block.
        device: a torch device ("cpu", "cuda:0").
        dtype: of weights and computation: "f32", "f16" or "bf16".
        kv_dtype: of the cache; "" is `dtype`.
        swap_space_bytes: size of the host pool; 0: preempted requests are recomputed.
        links: to the other ranks, where the graph is one rank's part; `hidden_size` is then the model's.

    Raises:
        UnsupportedError: the graph has operators that torch_operators.py lacks.
        ManifestError: the graph cannot be read.
        ConfigError: an unknown dtype, or a pool smaller than one block.
    """

    name = "torch"
    chooses_tokens = False

    def __init__(
        self,
        graph_path: Path,
        *,
        kv_cache_bytes: int,
        block_size: int = 16,
        device: str = "cpu",
        dtype: str = "f32",
        kv_dtype: str = "",
        swap_space_bytes: int = 0,
        links: RankLinks | None = None,
        hidden_size: int = 0,
    ) -> None:
        import torch

        from trtdecode.executor.graph_interpreter import GraphInterpreter

        self.block_size = block_size
        self.observer: Callable[[str, torch.Tensor], None] | None = None  # sees every computed value (calibration)
        self._device = torch.device(device)
        self._dtype = torch_dtype("precision", dtype)
        self._kv_dtype = torch_dtype("kv_cache_precision", kv_dtype or dtype)
        graph = read_graph(graph_path)
        specs = attention_specs(graph)
        num_values = sum(2 * spec.num_kv_heads * block_size * spec.head_dim for spec in specs.values())
        block_bytes = num_values * self._kv_dtype.itemsize
        self.num_blocks = blocks_in_budget(kv_cache_bytes, block_bytes)
        self.num_host_blocks = host_blocks_in_budget(swap_space_bytes, block_bytes)
        self._caches = self._allocate_caches(graph, list(specs.values()))
        tensors = list(self._caches.values())
        hosts = [torch.empty((self.num_host_blocks, *tensor.shape[1:]), dtype=tensor.dtype) for tensor in tensors]
        self._host_blocks = HostBlocks(tensors, hosts)
        self._attention = _PagedAttention(specs)
        self._links = links
        self._hidden_size = hidden_size if HIDDEN_INPUT in graph.inputs else 0
        self._interpreter = GraphInterpreter(
            graph,
            device=self._device,
            dtype=self._dtype,
            seam_operators={
                f"{OPERATOR_DOMAIN}::PagedAttention": self._attention,
                **({f"{OPERATOR_DOMAIN}::AllReduce": lambda _node, part: links.all_reduce(part)} if links else {}),
            },
        )

    def execute(self, batch: Batch) -> BatchResult:
        import torch

        from trtdecode.executor.torch_attention import PagedStep

        self._host_blocks.swap(batch)
        if batch.block_copies:
            self._copy_blocks(batch.block_copies)
        self._attention.step = PagedStep.from_batch(batch, self.block_size, self._device)
        feeds = {
            name: torch.from_numpy(np.ascontiguousarray(getattr(batch, name))).to(self._device)
            for name in ("input_ids", "positions", "past_lens", "query_begins", "block_indices", "block_begins")
        }
        feeds["logit_indices"] = torch.from_numpy(np.ascontiguousarray(batch.logit_indices)).to(self._device)
        feeds["max_context_len"] = torch.tensor(batch.max_context_len, dtype=torch.int32, device=self._device)
        if self._links is not None and self._hidden_size:
            shape = (batch.num_tokens, self._hidden_size)
            feeds[HIDDEN_INPUT] = self._links.receive(torch.empty(shape, dtype=self._dtype, device=self._device))
        outputs = self._interpreter.run({**feeds, **self._caches}, self.observer)
        if self._links is not None and HIDDEN_OUTPUT in outputs:
            self._links.send(outputs[HIDDEN_OUTPUT])
            return BatchResult(logits=None)  # the last stage answers
        logits = outputs[GRAPH_OUTPUT]
        if batch.argmax_only:
            # numpy's and torch's argmax both return the first of equal maxima on a CPU; CUDA's does not promise it.
            best = logits.amax(dim=-1, keepdim=True)
            return BatchResult(logits=None, argmax=(logits == best).int().argmax(dim=-1).cpu().numpy())
        return BatchResult(logits=logits.float().cpu().numpy())

    def describe(self) -> dict[str, str]:
        first = next(iter(self._caches.values()))
        kv_bytes = sum(cache.numel() * cache.element_size() for cache in self._caches.values())
        return {
            "device": str(self._device),
            "compute_precision": str(self._dtype).removeprefix("torch."),
            "kv_cache_precision": str(first.dtype).removeprefix("torch."),
            "kv_cache_layout": f"{len(self._caches)} x {list(first.shape)}",
            "kv_cache_bytes": str(kv_bytes),
        }

    def close(self) -> None:
        self._caches.clear()

    def _allocate_caches(self, graph: OnnxGraph, specs: list[AttentionSpec]) -> dict[str, torch.Tensor]:
        import torch

        caches = {}
        for layer, spec in enumerate(specs):
            for name in (f"key_cache.{layer}", f"value_cache.{layer}"):
                if name not in graph.inputs:
                    raise ManifestError(f"{graph.path}: no input {name!r} for layer {layer}; import the model again")
                shape = (self.num_blocks, spec.num_kv_heads, self.block_size, spec.head_dim)
                caches[name] = torch.zeros(shape, dtype=self._kv_dtype, device=self._device)
        return caches

    def _copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        for source, target in copies:
            for cache in self._caches.values():
                cache[target] = cache[source]


class _PagedAttention:
    """The interpreter's PagedAttention: a node's spec with the current step's prepared batch."""

    def __init__(self, specs: Mapping[str, AttentionSpec]) -> None:
        self._specs = specs
        self.step: PagedStep | None = None

    def __call__(self, node: Node, *inputs: torch.Tensor) -> torch.Tensor:
        from trtdecode.executor.torch_attention import paged_attention

        assert self.step is not None, "attention runs inside execute"
        query, key, value, key_cache, value_cache = inputs[:5]
        return paged_attention(query, key, value, key_cache, value_cache, self.step, self._specs[node.name])


def torch_dtype(parameter: str, name: str) -> torch.dtype:
    """torch's type of a configured name. Raises ConfigError naming the parameter and the allowed set."""
    import torch

    if name not in DTYPES:
        raise ConfigError(f"{parameter}: the torch executor has no {name!r}; use one of {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(torch, DTYPES[name])
    return dtype
