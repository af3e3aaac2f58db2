"""Chooses tokens on the device: the rows' parameters go there in one copy, token ids come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtdecode.executor.base import SAMPLING_ROW
from trtdecode.executor.cuda_graphs import StepOutput

if TYPE_CHECKING:
    import torch

    from trtdecode.executor.cuda_device import CapturedGraph, Device


class DeviceSampler:
    """The sampler of one executor: eager, and captured behind each captured decode step.

    Args:
        max_rows: rows of the largest step that is sampled here.
    """

    def __init__(self, device: Device, max_rows: int) -> None:
        import torch

        from trtdecode.executor.torch_sampling import fields_of

        self._device = device
        num_bytes = SAMPLING_ROW.itemsize
        self._pinned = device.allocate_pinned((max_rows, num_bytes), torch.uint8)
        self._host: npt.NDArray[Any] = self._pinned.numpy().view(SAMPLING_ROW)[:, 0]
        self._host[:] = np.zeros((), SAMPLING_ROW)
        self._on_device = device.allocate((max_rows, num_bytes), torch.uint8)
        self._fields = fields_of(self._on_device)
        self._graphs: dict[int, CapturedGraph[torch.Tensor]] = {}

    def capture(self, outputs: dict[int, StepOutput]) -> None:
        """Captures the choice over each captured step's logits, largest first as the steps were."""
        for size, output in outputs.items():
            self._device.run(lambda output=output: self._choose(output))  # type: ignore[misc]
            self._device.synchronize()
            self._graphs[size] = self._device.capture(lambda output=output: self._choose(output))  # type: ignore[misc]

    def replay(self, rows: npt.NDArray[np.void], size: int) -> torch.Tensor:
        """Token ids i64 [size] over the logits that the captured step of this size has just left."""
        self._stage(rows)
        return self._device.replay(self._graphs[size])

    def run(self, rows: npt.NDArray[np.void], output: StepOutput) -> torch.Tensor:
        """Token ids i64 [S] of an eager step."""
        self._stage(rows)
        return self._device.run(lambda: self._choose(output))

    def _stage(self, rows: npt.NDArray[np.void]) -> None:
        """Sends the rows' parameters. What padding rows choose by is left from before: nobody reads it."""
        self._host[: len(rows)] = rows
        self._device.copy(self._on_device[: len(rows)], self._pinned[: len(rows)])

    def _choose(self, output: StepOutput) -> torch.Tensor:
        from trtdecode.executor.torch_sampling import choose

        num_rows = output.logits.shape[0]
        fields = {name: field[:num_rows] for name, field in self._fields.items()}
        return choose(output.logits, output.argmax, fields)

    def close(self) -> None:
        self._graphs.clear()
