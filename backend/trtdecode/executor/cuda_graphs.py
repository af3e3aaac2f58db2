"""Decode steps as CUDA graphs: one graph a batch size, replayed with padding to the next size, eager above.

A decode step is hundreds of small kernels; launching them costs more host time than they take. A graph launches them
in one call. At load each size of the ladder is run once (kernels are compiled, engines specialised) and then captured,
the largest first, so that the smaller ones fit into the memory it took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtdecode.errors import ConfigError
from trtdecode.executor.base import Batch

if TYPE_CHECKING:
    import torch

    from trtdecode.executor.cuda_device import CapturedGraph, Device
    from trtdecode.executor.device_step import DeviceStep, StepBuffer


@dataclass(frozen=True)
class StepOutput:
    """What a step leaves on the device. A captured step's tensors are overwritten by the next replay of its graph."""

    logits: torch.Tensor  # f32 [S, V]
    argmax: torch.Tensor  # i64 [S]; the lowest id wins a tie


Forward = Callable[["DeviceStep"], StepOutput]


def graph_sizes(max_num_seqs: int, wanted: Sequence[int] = ()) -> tuple[int, ...]:
    """Batch sizes to capture, ascending.

    Args:
        wanted: `optimization.cuda.graph_spec`'s batch sizes; empty for the default ladder: powers of two and the
            sizes half-way between them from 16 on, up to max_num_seqs, which pads by at most a half and mostly less.

    Raises:
        ConfigError: a wanted size no batch can have.
    """
    if wanted:
        sizes = sorted(set(wanted))
        if sizes[0] < 1 or sizes[-1] > max_num_seqs:
            bad = sizes[0] if sizes[0] < 1 else sizes[-1]
            raise ConfigError(
                f"optimization.cuda.graph_spec.batch_size: got {bad}; must be in 1..max_num_seqs ({max_num_seqs}): "
                "no larger decode batch exists, so raise max_num_seqs or drop it"
            )
        return tuple(sizes)
    powers = [1 << exponent for exponent in range(max_num_seqs.bit_length())]
    halves = [3 * power // 2 for power in powers if power >= 16]
    return tuple(sorted({size for size in (*powers, *halves) if size <= max_num_seqs} | {max_num_seqs}))


def is_decode(batch: Batch) -> bool:
    """Whether every sequence has one new token and wants its logits: the only kind of step that is captured."""
    num_sequences = batch.num_sequences
    return (
        batch.num_tokens == num_sequences == len(batch.logit_indices)
        and bool((batch.logit_indices == np.arange(num_sequences)).all())
        and bool((np.diff(batch.query_begins) == 1).all())
    )


class DecodeGraphs:
    """The captured sizes of one executor.

    Args:
        forward: all device work of a step, on tensors whose addresses depend on its sizes alone.
        sizes: ascending, as `graph_sizes` gives them; empty turns graphs off.
    """

    def __init__(self, device: Device, buffer: StepBuffer, forward: Forward, sizes: Sequence[int]) -> None:
        self._device = device
        self._buffer = buffer
        self._forward = forward
        self.sizes = tuple(sizes)
        self.capture_seconds = 0.0
        self._graphs: dict[int, CapturedGraph[StepOutput]] = {}

    def capture(self) -> None:
        """Warms up and captures every size. Call once, after everything the forward needs is allocated."""
        started = time.monotonic()
        for size in reversed(self.sizes):
            step = self._buffer.stage_padding(size)
            self._device.run(lambda step=step: self._forward(step))  # type: ignore[misc]
            self._device.synchronize()
            self._graphs[size] = self._device.capture(lambda step=step: self._forward(step))  # type: ignore[misc]
        self.capture_seconds = time.monotonic() - started

    @property
    def outputs(self) -> dict[int, StepOutput]:
        """What each captured size leaves on the device, largest first."""
        return {size: graph.result for size, graph in self._graphs.items()}

    def size_for(self, batch: Batch) -> int:
        """The captured size that `batch` is padded to; 0 when it must run eagerly."""
        if not self._graphs or not is_decode(batch):
            return 0
        return next((size for size in self.sizes if size >= batch.num_sequences), 0)

    def replay(self, batch: Batch, size: int) -> StepOutput:
        """Pads, sends and replays. Rows beyond the batch's are padding."""
        self._buffer.stage(batch, size)
        return self._device.replay(self._graphs[size])

    def close(self) -> None:
        self._graphs.clear()
