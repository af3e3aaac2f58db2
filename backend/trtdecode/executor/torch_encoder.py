"""Encoders in torch: the same graph, interpreted. The reference on a CPU; on CUDA what serves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from trtdecode.executor.encoder_base import ENCODER_INPUTS, EncoderBatch
from trtdecode.executor.onnx_graph import read_graph
from trtdecode.executor.torch_executor import torch_dtype


class TorchEncoder:
    """See `encoder_base.EncoderExecutor`.

    Args:
        graph_path: the ONNX file, weights beside it.
        device: a torch device ("cpu", "cuda:0").
        dtype: of weights and computation: "f32", "f16" or "bf16".

    Raises:
        UnsupportedError: the graph has operators that torch_operators.py lacks.
        ManifestError: the graph cannot be read.
        ConfigError: an unknown dtype.
    """

    name = "torch"

    def __init__(self, graph_path: Path, *, device: str = "cpu", dtype: str = "f32") -> None:
        import torch

        from trtdecode.executor.graph_interpreter import GraphInterpreter

        self._device = torch.device(device)
        self._dtype = torch_dtype("compute_precision", dtype)
        graph = read_graph(graph_path)
        (self._output,) = graph.outputs
        self._interpreter = GraphInterpreter(graph, device=self._device, dtype=self._dtype, seam_operators={})

    def execute(self, batch: EncoderBatch) -> npt.NDArray[np.float32]:
        import torch

        feeds = {name: torch.from_numpy(getattr(batch, name)).to(self._device) for name in ENCODER_INPUTS}
        feeds["pad_mask"] = feeds["pad_mask"].to(self._dtype)
        output: npt.NDArray[np.float32] = self._interpreter.run(feeds)[self._output].float().cpu().numpy()
        return output

    def describe(self) -> dict[str, str]:
        return {"device": str(self._device), "compute_precision": str(self._dtype).removeprefix("torch.")}

    def close(self) -> None:
        """Nothing to free before the object is."""
