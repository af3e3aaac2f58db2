"""The CPU executor: the graph compiled by OpenVINO, its paged attention over our block pool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdecode.errors import ConfigError
from trtdecode.executor.base import GRAPH_INPUTS, GRAPH_OUTPUT, Batch, BatchResult
from trtdecode.executor.kv_pool import blocks_in_budget

if TYPE_CHECKING:
    import openvino as ov

_ELEMENT_TYPES = {"f32": "f32", "bf16": "bf16", "u8": "u8"}
_COMPUTE_TYPES = ("f32", "bf16")


class OpenVinoExecutor:
    """See `base.Executor`.

    Args:
        graph_path: the ONNX file, weights beside it.
        kv_cache_bytes: size of the block pool.
        kv_cache_precision: "f32", "bf16" or "u8".
        compute_precision: "f32", or "bf16" (faster where the CPU has AMX, and less exact).
        quantize_activations: quantise the inputs of INT8/INT4 matrix products to 8 bits on the fly.
        num_threads: threads of the executor; 0 is one a physical core.
        cache_dir: where compiled models are kept for the next start; None compiles each time.

    Raises:
        ManifestError, UnsupportedError: see `read_decoder`.
        ConfigError: an unknown precision, or a pool smaller than one block.
    """

    name = "openvino"

    def __init__(
        self,
        graph_path: Path,
        *,
        kv_cache_bytes: int,
        kv_cache_precision: str = "f32",
        compute_precision: str = "f32",
        quantize_activations: bool = False,
        num_threads: int = 0,
        cache_dir: Path | None = None,
    ) -> None:
        import openvino as ov

        from trtdecode.executor.machine import usable_physical_cores
        from trtdecode.executor.openvino_paged_attention import cache_layouts, read_decoder

        _check_choice("kv_cache_precision", kv_cache_precision, tuple(_ELEMENT_TYPES))
        _check_choice("compute_precision", compute_precision, _COMPUTE_TYPES)
        core = ov.Core()
        model = read_decoder(core, graph_path)
        properties: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": num_threads or usable_physical_cores(),
            "INFERENCE_PRECISION_HINT": compute_precision,
            "KV_CACHE_PRECISION": _ELEMENT_TYPES[kv_cache_precision],
        }
        if not quantize_activations:
            properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        if cache_dir is not None:
            properties["CACHE_DIR"] = str(cache_dir)
        self._compiled: ov.CompiledModel | None = core.compile_model(model, "CPU", properties)
        self._properties = properties
        self._layouts = cache_layouts(self._compiled)
        self.block_size = self._block_size()
        self.num_blocks = blocks_in_budget(kv_cache_bytes, sum(layout.block_bytes for layout in self._layouts))
        self._request = self._compiled.create_infer_request()
        self._caches = self._allocate_caches()
        self._max_context_len = np.zeros((), np.int32)
        self._request.set_tensor("max_context_len", ov.Tensor(self._max_context_len, shared_memory=True))
        self._output = self._compiled.output(GRAPH_OUTPUT)

    def execute(self, batch: Batch) -> BatchResult:
        for source, target in batch.block_copies:
            for cache in self._caches:
                cache.data[target] = cache.data[source]
        self._bind_inputs(batch)
        self._request.infer()
        logits = self._request.get_tensor(self._output).data  # a view of OpenVINO's own buffer
        if batch.argmax_only:
            return BatchResult(logits=None, argmax=logits.argmax(axis=-1))
        return BatchResult(logits=logits)

    def describe(self) -> dict[str, str]:
        import openvino as ov

        first = self._layouts[0]
        return {
            "device": "CPU",
            "openvino": ov.__version__,
            "threads": str(self._properties["INFERENCE_NUM_THREADS"]),
            "compute_precision": self._properties["INFERENCE_PRECISION_HINT"],
            "kv_cache_precision": first.element_type.to_string(),
            "kv_cache_layout": f"{len(self._layouts)} x {[self.num_blocks, *first.block_shape]}",
            "kv_cache_bytes": str(self.num_blocks * sum(layout.block_bytes for layout in self._layouts)),
        }

    def close(self) -> None:
        self._caches.clear()
        self._request = self._compiled = None

    def _bind_inputs(self, batch: Batch) -> None:
        """Hands the batch's own arrays to OpenVINO: no copy, and they stay untouched until `infer` returns."""
        import openvino as ov

        self._max_context_len[...] = batch.max_context_len
        for name in GRAPH_INPUTS:
            if name != "max_context_len":
                self._request.set_tensor(name, ov.Tensor(getattr(batch, name), shared_memory=True))

    def _block_size(self) -> int:
        """Slots a block, from the value cache: its third axis is the slot in every precision."""
        value = next(layout for layout in self._layouts if layout.name.startswith("value_cache."))
        return value.block_shape[1]

    def _allocate_caches(self) -> list[ov.Tensor]:
        """Host memory of every cache, bound once. Pages are touched, and so become resident, only when used."""
        import openvino as ov

        caches = []
        for layout in self._layouts:
            cache = ov.Tensor(layout.element_type, ov.Shape([self.num_blocks, *layout.block_shape]))
            self._request.set_tensor(layout.name, cache)
            caches.append(cache)
        return caches


def _check_choice(parameter: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{parameter}: the openvino executor has no {value!r}; use one of {', '.join(allowed)}")
