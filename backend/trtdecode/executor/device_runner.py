"""Runs batches on a device: captured where it can be, eager otherwise, results in pinned host memory.

What an executor on a GPU is beyond its forward pass; the TensorRT and the torch executor share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtdecode.executor.base import Batch, BatchResult
from trtdecode.executor.cuda_graphs import DecodeGraphs, Forward, StepOutput
from trtdecode.executor.device_sampler import DeviceSampler

if TYPE_CHECKING:
    import torch

    from trtdecode.executor.cuda_device import Device
    from trtdecode.executor.device_pages import PagePool
    from trtdecode.executor.device_step import StepBuffer


class DeviceRunner:
    """`Executor.execute` on a device.

    Args:
        sizes: batch sizes to capture; empty runs every step eagerly.
    """

    def __init__(
        self,
        device: Device,
        buffer: StepBuffer,
        pool: PagePool,
        forward: Forward,
        *,
        max_num_seqs: int,
        sizes: Sequence[int],
    ) -> None:
        import torch

        self._device = device
        self._buffer = buffer
        self._pool = pool
        self._forward = forward
        self._graphs = DecodeGraphs(device, buffer, forward, sizes)
        self._sampler = DeviceSampler(device, max_num_seqs)
        self._max_num_seqs = max_num_seqs
        self._logits = self._argmax = torch.empty(0)  # `prepare` knows the vocabulary
        self.num_replayed = 0
        self.num_eager = 0

    def prepare(self) -> None:
        """Runs one step, which tells the vocabulary's size, then captures. Everything else must be allocated by now."""
        step = self._buffer.stage_padding(1)
        output = self._device.run(lambda: self._forward(step))
        self._device.synchronize()
        self._allocate(self._max_num_seqs, int(output.logits.shape[1]))
        self._graphs.capture()
        self._sampler.capture(self._graphs.outputs)

    def execute(self, batch: Batch) -> BatchResult:
        """See `base.Executor.execute`."""
        size = self._graphs.size_for(batch)
        if size:
            self.num_replayed += 1
            with self._device.replaying():
                self._pool.copy_blocks(batch)
                output = self._graphs.replay(batch, size)
                if batch.sampling is not None and not batch.argmax_only:
                    return self._download_tokens(self._sampler.replay(batch.sampling, size), batch)
                return self._download(output, batch)
        self.num_eager += 1
        self._pool.copy_blocks(batch)
        step = self._buffer.stage(batch)
        if step.num_rows > len(self._argmax):  # prompt logprobs want more than a row a sequence
            self._allocate(step.num_rows, self._logits.shape[1])
        output = self._device.run(lambda: self._forward(step))
        if batch.sampling is not None and not batch.argmax_only and step.num_rows:
            return self._download_tokens(self._sampler.run(batch.sampling, output), batch)
        return self._download(output, batch)

    def describe(self) -> dict[str, str]:
        sizes = self._graphs.sizes
        return {
            "cuda_graphs": ", ".join(map(str, sizes)) if sizes else "off",
            "capture_seconds": f"{self._graphs.capture_seconds:.2f}",
        }

    def close(self) -> None:
        self._graphs.close()
        self._sampler.close()

    def _allocate(self, num_rows: int, vocab_size: int) -> None:
        import torch

        self._logits = self._device.allocate_pinned((num_rows, vocab_size), torch.float32)
        self._argmax = self._device.allocate_pinned((num_rows,), torch.int64)

    def _download(self, output: StepOutput, batch: Batch) -> BatchResult:
        """Brings the real rows to the host: 8 bytes a row when an argmax is enough, else the logits."""
        rows = len(batch.logit_indices)
        if batch.argmax_only:
            self._bring(self._argmax[:rows], output.argmax[:rows])
            return BatchResult(logits=None, argmax=self._argmax[:rows].numpy())
        self._bring(self._logits[:rows], output.logits[:rows])
        return BatchResult(logits=self._logits[:rows].numpy())

    def _download_tokens(self, chosen: torch.Tensor, batch: Batch) -> BatchResult:
        """Eight bytes a row."""
        rows = len(batch.logit_indices)
        self._bring(self._argmax[:rows], chosen[:rows])
        return BatchResult(logits=None, token_ids=self._argmax[:rows].numpy())

    def _bring(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._device.copy(target, source)
        self._device.synchronize()


def output_of(logits: torch.Tensor) -> StepOutput:
    """Logits in f32 and their argmax, chosen on the device. The lowest id wins a tie, which torch's own argmax does
    not promise on CUDA."""
    wide = logits.float()
    best = wide.amax(dim=-1, keepdim=True)
    return StepOutput(wide, (wide == best).int().argmax(dim=-1))
