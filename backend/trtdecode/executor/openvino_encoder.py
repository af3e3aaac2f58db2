"""Encoders on a CPU: the graph compiled by OpenVINO, in float32 unless asked otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtdecode.errors import ConfigError, ManifestError
from trtdecode.executor.encoder_base import ENCODER_INPUTS, EncoderBatch
from trtdecode.executor.machine import usable_physical_cores
from trtdecode.executor.openvino_precisions import check_hardware, programs

#: `mixed` switches with the size of a decoder's step and has no meaning here.
COMPUTE_PRECISIONS = ("f32", "int8", "bf16")


class OpenVinoEncoder:
    """See `encoder_base.EncoderExecutor`.

    Args:
        graph_path: the ONNX file, weights beside it.
        compute_precision: one of COMPUTE_PRECISIONS; what they mean stands in openvino_precisions.py.
        num_threads: threads of the executor; 0 is one a physical core.

    Raises:
        ManifestError: OpenVINO cannot read the graph.
        ConfigError: an unknown precision, or one that the CPU lacks.
    """

    name = "openvino"

    def __init__(self, graph_path: Path, *, compute_precision: str = "f32", num_threads: int = 0) -> None:
        import openvino as ov

        if compute_precision not in COMPUTE_PRECISIONS:
            raise ConfigError(
                f"compute_precision: an encoder on openvino has no {compute_precision!r}; "
                f"use one of {', '.join(COMPUTE_PRECISIONS)}"
            )
        self._facts = {
            "device": "CPU",
            "openvino": ov.__version__,
            "threads": str(num_threads or usable_physical_cores()),
            "compute_precision": compute_precision,
        }
        core = ov.Core()
        check_hardware(core, compute_precision)
        try:
            model = core.read_model(graph_path)
        except RuntimeError as error:
            raise ManifestError(f"{graph_path}: OpenVINO cannot read it ({error}); import the model again") from error
        properties: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": int(self._facts["threads"]),
            **programs(compute_precision, model)[0][1],
        }
        self._request = core.compile_model(model, "CPU", properties).create_infer_request()

    def execute(self, batch: EncoderBatch) -> npt.NDArray[np.float32]:
        import openvino as ov

        for name in ENCODER_INPUTS:
            self._request.set_tensor(name, ov.Tensor(getattr(batch, name), shared_memory=True))
        self._request.infer()
        output: npt.NDArray[np.float32] = self._request.get_output_tensor(0).data.copy()  # OpenVINO's own buffer
        return output

    def describe(self) -> dict[str, str]:
        return dict(self._facts)

    def close(self) -> None:
        self._request = None
