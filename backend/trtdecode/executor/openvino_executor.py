"""The CPU executor: the graph compiled by OpenVINO, paged attention over our block pool (`openvino_attention.py`).

SmolLM2-135M INT8 against its f32 weights over 1,400 tokens of text, as mean KL divergence and share of equal first
choices: f32 0.0015 and 0.975, int8 0.0052 and 0.952, bf16 0.0029 and 0.954; a u8 KV cache added 0.0001 with OpenVINO's
attention. Small means hide changed answers: asked for the capital of France under its default system prompt, f32 says
Paris and the other three do not. So f32 is the default, and the others are for whoever has checked them on their own
model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdecode.errors import ConfigError
from trtdecode.executor.base import GRAPH_INPUTS, GRAPH_OUTPUT, Batch, BatchResult
from trtdecode.executor.kv_pool import HostBlocks, blocks_in_budget, host_blocks_in_budget
from trtdecode.executor.machine import usable_physical_cores
from trtdecode.executor.openvino_precisions import (
    BF16_PRECISIONS,
    COMPUTE_PRECISIONS,
    check_hardware,
    describe_int8_products,
    has_int8_dot_product,
    programs,
)

if TYPE_CHECKING:
    import openvino as ov

KV_CACHE_PRECISIONS = ("f32", "u8")


@dataclass(frozen=True, slots=True)
class _Program:
    """One compiled model with the request that runs it."""

    min_tokens: int
    request: Any  # openvino.InferRequest
    output: Any  # its logits port


class OpenVinoExecutor:
    """See `base.Executor`.

    Args:
        graph_path: the ONNX file, weights beside it.
        kv_cache_bytes: size of the block pool.
        kv_cache_precision: "f32", or "u8": a 3.5th of the room, and faster. With OpenVINO's attention its rounding
            depends on how a prompt was cut into steps. bf16 and mixed need u8.
        compute_precision: one of COMPUTE_PRECISIONS.
        num_threads: threads of the executor; 0 is one a physical core.
        swap_space_bytes: size of the host pool; 0: preempted requests are recomputed.
        count_operators: keeps the time of every operator for `operator_seconds`; costs a little.
        attention: one of ATTENTION_OPERATORS.

    Raises:
        ManifestError, UnsupportedError: see `read_decoder`.
        ConfigError: precisions that are unknown or do not go together, or a pool smaller than one block.
    """

    name = "openvino"
    chooses_tokens = False

    def __init__(
        self,
        graph_path: Path,
        *,
        kv_cache_bytes: int,
        kv_cache_precision: str = "f32",
        compute_precision: str = "f32",
        num_threads: int = 0,
        swap_space_bytes: int = 0,
        count_operators: bool = False,
        attention: str = "auto",
    ) -> None:
        import openvino as ov

        from trtdecode.executor.openvino_attention import read_decoder
        from trtdecode.executor.openvino_graph import block_size_of, cache_layouts
        from trtdecode.executor.openvino_rewrite import split_gated_products

        _check_precisions(kv_cache_precision, compute_precision)
        self.graph_name = graph_path.name
        self.compute_precision = compute_precision
        self.num_threads = num_threads or usable_physical_cores()
        core = ov.Core()
        check_hardware(core, compute_precision)
        model, self.attention = read_decoder(
            core, graph_path, attention=attention, kv_cache_precision=kv_cache_precision
        )
        split_gated_products(model)
        is_int8 = compute_precision in ("int8", "mixed")
        products = describe_int8_products(model, has_dot_product=has_int8_dot_product())
        self._int8_facts = {"int8_products": products} if is_int8 else {}
        properties = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": self.num_threads,
            "KV_CACHE_PRECISION": kv_cache_precision,
            "PERF_COUNT": count_operators,
        }
        compiled = [
            (min_tokens, core.compile_model(model, "CPU", {**properties, **special}))
            for min_tokens, special in programs(compute_precision, model)
        ]
        self._layouts = cache_layouts(compiled[0][1])
        assert all(cache_layouts(program) == self._layouts for _, program in compiled), "programs share one KV pool"
        self._block_bytes = sum(layout.block_bytes for layout in self._layouts)
        self.block_size = block_size_of(self._layouts)
        self.num_blocks = blocks_in_budget(kv_cache_bytes, self._block_bytes)
        self.num_host_blocks = host_blocks_in_budget(swap_space_bytes, self._block_bytes)
        self._caches = self._allocate_caches()
        arrays = [cache.data for cache in self._caches.values()]
        # A page becomes resident only when it is written.
        hosts = [np.empty((self.num_host_blocks, *array.shape[1:]), array.dtype) for array in arrays]
        self._host_blocks = HostBlocks(arrays, hosts)
        self._max_context_len = np.zeros((), np.int32)
        self._programs = [self._bind(min_tokens, program) for min_tokens, program in compiled]

    def execute(self, batch: Batch) -> BatchResult:
        self._host_blocks.swap(batch)
        for source, target in batch.block_copies:
            for cache in self._caches.values():
                cache.data[target] = cache.data[source]
        program = self._program_for(batch.num_tokens)
        self._set_inputs(program.request, batch)
        program.request.infer()
        logits = program.request.get_tensor(program.output).data  # a view of OpenVINO's own buffer
        if batch.argmax_only:
            # numpy's argmax takes a quarter of the time of OpenVINO's TopK (0.5 ms against 1.8 for [64, 49152]).
            return BatchResult(logits=None, argmax=logits.argmax(axis=-1))
        return BatchResult(logits=logits)

    def describe(self) -> dict[str, str]:
        import openvino as ov

        first = self._layouts[0]
        return {
            "device": "CPU",
            "graph": self.graph_name,
            "openvino": ov.__version__,
            "threads": str(self.num_threads),
            "compute_precision": self.compute_precision,
            **self._int8_facts,
            "attention": self.attention,
            "kv_cache_precision": first.element_type.to_string(),
            "kv_cache_layout": f"{len(self._layouts)} x {[self.num_blocks, *first.block_shape]}",
            "kv_cache_bytes": str(self.num_blocks * self._block_bytes),
        }

    def operator_seconds(self, num_tokens: int) -> dict[str, float]:
        """Kind of operator -> seconds it takes in a step, the mean of all steps of so many tokens' program.

        Needs `count_operators`.
        """
        seconds: dict[str, float] = {}
        for entry in self._program_for(num_tokens).request.profiling_info:
            kind = _KINDS.get(entry.node_type, entry.node_type)
            seconds[kind] = seconds.get(kind, 0.0) + entry.real_time.total_seconds()
        return {kind: value for kind, value in seconds.items() if value}

    def close(self) -> None:
        self._programs.clear()
        self._caches.clear()

    def _program_for(self, num_tokens: int) -> _Program:
        return next(program for program in reversed(self._programs) if program.min_tokens <= num_tokens)

    def _set_inputs(self, request: Any, batch: Batch) -> None:
        """Hands the batch's own arrays to OpenVINO: no copy, and they stay untouched until `infer` returns."""
        import openvino as ov

        self._max_context_len[...] = batch.max_context_len
        for name in GRAPH_INPUTS:
            if name != "max_context_len":
                request.set_tensor(name, ov.Tensor(getattr(batch, name), shared_memory=True))

    def _allocate_caches(self) -> dict[str, ov.Tensor]:
        """Host memory of every cache. A page becomes resident only when it is written."""
        import openvino as ov

        return {
            layout.name: ov.Tensor(layout.element_type, ov.Shape([self.num_blocks, *layout.block_shape]))
            for layout in self._layouts
        }

    def _bind(self, min_tokens: int, compiled: ov.CompiledModel) -> _Program:
        """A request with the tensors that stay the same for ever."""
        import openvino as ov

        request = compiled.create_infer_request()
        for name, cache in self._caches.items():
            request.set_tensor(name, cache)
        request.set_tensor("max_context_len", ov.Tensor(self._max_context_len, shared_memory=True))
        return _Program(min_tokens, request, compiled.output(GRAPH_OUTPUT))


#: OpenVINO calls an operator of an extension a reference; a decoder has no other.
_KINDS = {"Reference": "PagedAttention"}


def _check_precisions(kv_cache_precision: str, compute_precision: str) -> None:
    for parameter, value, allowed in (
        ("kv_cache_precision", kv_cache_precision, KV_CACHE_PRECISIONS),
        ("compute_precision", compute_precision, COMPUTE_PRECISIONS),
    ):
        if value not in allowed:
            raise ConfigError(f"{parameter}: the openvino executor has no {value!r}; use one of {', '.join(allowed)}")
    if kv_cache_precision == "f32" and compute_precision in BF16_PRECISIONS:
        raise ConfigError(
            f"kv_cache_precision: f32 does not go with compute_precision {compute_precision}; use u8, or compute in f32"
        )
