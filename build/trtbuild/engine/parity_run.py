"""Parity beside a build: each segment's graph also runs on the CPU, right after it was prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from trtdecode.executor.engine_steps import Step

from trtbuild.quantize.calibrate import BLOCK_SIZE, group_texts, pool_bytes, prompt_batch
from trtbuild.quantize.quality import Quality, measure_quality
from trtbuild.quantize.segment_runner import SegmentRunner
from trtbuild.verify.parity import Logits


class ParityRun:
    """One precision's walk over the evaluation text.

    ONNX Runtime has no BF16 on a CPU, so for BF16 the torch executor runs the whole float32 graph in that type.

    Args:
        graph_path: the float32 decoder.
        texts: token ids.
        float_type: what the engines compute in.
    """

    def __init__(
        self,
        graph_path: Path,
        texts: Sequence[Sequence[int]],
        steps: Sequence[Step],
        tables: Mapping[str, ir.TensorProtocol],
        float_type: str,
    ) -> None:
        self._graph_path = graph_path
        self._batches = [prompt_batch(group, BLOCK_SIZE, every_row=True) for group in group_texts(texts)]
        self._runner: SegmentRunner | None = None
        if float_type != "bf16":
            arrays = {name: table.numpy() for name, table in tables.items()}
            self._runner = SegmentRunner(self._batches, BLOCK_SIZE, steps, arrays, float_type)

    def add(self, segment: str, onnx_path: Path) -> None:
        """Runs one segment; call it for every segment, in order."""
        if self._runner is not None:
            self._runner.run_segment(segment, onnx_path)

    def finish(self, precision: str) -> Quality:
        """The figures, once every segment was added."""
        candidate = self._runner.logits() if self._runner is not None else self._whole_graph("bf16")
        return measure_quality(precision, self._batches, self._whole_graph("f32"), candidate)

    def _whole_graph(self, dtype: str) -> list[Logits]:
        from trtdecode.executor.torch_executor import TorchExecutor

        executor = TorchExecutor(
            self._graph_path,
            kv_cache_bytes=pool_bytes(self._graph_path),
            block_size=BLOCK_SIZE,
            dtype=dtype,
        )
        try:
            results = [executor.execute(batch).logits for batch in self._batches]
        finally:
            executor.close()
        return [np.array(logits) for logits in results if logits is not None]
