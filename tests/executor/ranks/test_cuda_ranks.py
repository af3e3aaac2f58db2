"""The CUDA executor as one rank of several, on recording devices: the same graph, our kernels, links to the others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder.graph.test_tensor_parallel import FILE, checkpoint_of, logits_of, whole
from executor.ranks.thread_links import ThreadedRanks, ThreadLinks
from executor.recording_device import RecordingDevice
from trtbuild.ranks import write_rank_graphs
from trtdecode.executor.device_step import StepLimits
from trtdecode.executor.torch_cuda_executor import TorchCudaExecutor
from trtdecode.manifest import RankLayout, rank_dir


class OneAtATime:
    """A launcher for threads: triton-lang's interpreter patches its own module while a kernel runs."""

    lock = threading.Lock()

    def __init__(self, device: RecordingDevice) -> None:
        self._launch = device.launcher

    def __call__(self, *args: Any) -> None:
        with self.lock:
            self._launch(*args)


@pytest.mark.parametrize("layout", [RankLayout(2, 1), RankLayout(1, 2)], ids=str)
def test_ranks_on_devices_compute_the_same(layout: RankLayout, tmp_path: Path) -> None:
    """Eagerly: a graph captured on a recording device does not wait for another thread's, as NCCL's does."""
    checkpoint = checkpoint_of("llama-tied", tmp_path)
    folder = tmp_path / "split"
    folder.mkdir()
    write_rank_graphs(checkpoint, folder, FILE, "f32", layout)

    def make(rank: int, links: ThreadLinks) -> TorchCudaExecutor:
        device = RecordingDevice()
        device.launcher = OneAtATime(device)  # type: ignore[assignment]
        return TorchCudaExecutor(
            rank_dir(folder, rank) / FILE,
            device=device,
            limits=StepLimits(max_num_seqs=4, max_num_batched_tokens=32, max_context_len=64),
            dtype="f32",
            kv_cache_bytes=1 << 20,
            graphs=False,
            links=links,
            hidden_size=96,
        )

    got = logits_of(ThreadedRanks(layout, make))
    np.testing.assert_allclose(got, whole(checkpoint, tmp_path), atol=2e-4, rtol=0)
