"""Runs a cut decoder on the CPU, segment by segment: ONNX Runtime for the pieces that TensorRT gets, the reference
attention between them.

It sees the very files the builder sees, Q/DQ and types included, so a deviation from float32 here is the
quantisation's own. Segments are run over the whole text one after another and can be deleted in between; nothing but
the values that later steps read is kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.base import GRAPH_INPUTS, GRAPH_OUTPUT, Batch
from trtdecode.executor.engine_steps import EngineStep, GatherStep, RowsStep, SeamStep, Step

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


class SegmentRunner:
    """One walk through the steps for several independent prompt batches.

    Args:
        batches: prompts from position 0, each batch in blocks of its own; every row's logits are wanted.
        steps: of the cut graph, in order.
        tables: what GatherSteps and tied heads read.
        float_type: "f16", "bf16" or "f32": what the engines compute in.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        block_size: int,
        steps: Sequence[Step],
        tables: Mapping[str, Array],
        float_type: str,
    ) -> None:
        self._batches = batches
        self._block_size = block_size
        self._steps = list(steps)
        self._tables = tables
        self._dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}[float_type]
        self._values: list[dict[str, Array]] = [_inputs_of(batch) for batch in batches]

    def run_until(self, segment: str) -> None:
        """Runs the steps up to the engine `segment`, so that `run_segment` can follow."""
        while self._steps:
            step = self._steps[0]
            if isinstance(step, EngineStep) and step.file == segment:
                return
            self._steps.pop(0)
            assert not isinstance(step, EngineStep), f"{step.file} was skipped"
            for batch, values in zip(self._batches, self._values, strict=True):
                self._run(step, batch, values)

    def run_segment(self, segment: str, onnx_path: Path) -> None:
        """Runs the steps up to and with `segment`, whose graph is `onnx_path`."""
        self.run_until(segment)
        step = self._steps.pop(0)
        assert isinstance(step, EngineStep)
        session = open_session(onnx_path)
        for values in self._values:
            feeds = {name: self._tables[name] if name in self._tables else values[name] for name in step.inputs}
            values.update(zip(step.outputs, session.run(list(step.outputs), feeds), strict=True))
        self._drop_unused()

    def logits(self) -> list[Float32]:
        """[tokens, vocab] of each batch, once the last segment has run."""
        return [values[GRAPH_OUTPUT] for values in self._values]

    def _run(self, step: Step, batch: Batch, values: dict[str, Array]) -> None:
        if isinstance(step, GatherStep):
            values[step.output] = self._gather(step, values[step.indices])
        elif isinstance(step, RowsStep):
            values[step.output] = values[step.input][batch.logit_indices]
        elif isinstance(step, SeamStep):
            values[step.output] = self._attend(step, batch, values)

    def _gather(self, step: GatherStep, indices: Array) -> Array:
        table = self._tables[step.table]
        rows = table[:, indices].T if step.axis == 1 else table[indices]
        if step.scales:
            rows = rows.astype(np.float32) * self._tables[step.scales][indices].astype(np.float32)[:, None]
            return np.asarray(rows, self._dtype)
        return np.ascontiguousarray(rows)

    def _attend(self, step: SeamStep, batch: Batch, values: Mapping[str, Array]) -> Array:
        import torch
        from trtdecode.executor.torch_attention import PagedStep, paged_attention

        assert step.operator == "PagedAttention", f"{step.operator} needs several ranks; build parity from one shard"
        spec = AttentionSpec.from_attributes(step.attributes, step.name)
        num_blocks = int(batch.block_indices.max()) + 1
        cache = torch.zeros((2, num_blocks, spec.num_kv_heads, self._block_size, spec.head_dim))
        query, key, value = (torch.from_numpy(values[name].astype(np.float32)) for name in step.inputs[:3])
        paged = PagedStep.from_batch(batch, self._block_size, torch.device("cpu"))
        with torch.inference_mode():
            result = paged_attention(query, key, value, cache[0], cache[1], paged, spec)
        return np.asarray(result.numpy(), self._dtype)

    def _drop_unused(self) -> None:
        needed = {GRAPH_OUTPUT, *GRAPH_INPUTS}
        for step in self._steps:
            needed |= set(_inputs_of_step(step))
        for values in self._values:
            for name in set(values) - needed:
                del values[name]


def _inputs_of_step(step: Step) -> tuple[str, ...]:
    if isinstance(step, EngineStep | SeamStep):
        return step.inputs
    return (step.input,) if isinstance(step, RowsStep) else (step.indices,)


def _inputs_of(batch: Batch) -> dict[str, Array]:
    """The graph inputs that segments and gathers read."""
    return {"input_ids": batch.input_ids, "positions": batch.positions}


def open_session(onnx_path: Path) -> Any:
    """ONNX Runtime on the CPU, running the graph as it is written."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    options.log_severity_level = 3  # it warns about every Q/DQ that it leaves in place
    # Fusions of its own would change what is measured: the graph runs as it is written.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(onnx_path), options, providers=["CPUExecutionProvider"])
