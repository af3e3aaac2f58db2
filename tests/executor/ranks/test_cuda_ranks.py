"""The GPU executors as one rank of several, on recording devices: the same graph, our kernels, links to the others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder.graph.test_tensor_parallel import FILE, checkpoint_of, logits_of, whole
from executor.fake_tensorrt import FakeRuntime, engine_folder_of
from executor.ranks.thread_links import ThreadedRanks, ThreadLinks
from executor.recording_device import RecordingDevice
from trtbuild.ranks import write_rank_graphs
from trtdecode.errors import UnsupportedError
from trtdecode.executor.device_step import StepLimits
from trtdecode.executor.tensorrt_executor import TensorRtExecutor
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


LIMITS = StepLimits(max_num_seqs=4, max_num_batched_tokens=32, max_context_len=64)


def recording_device() -> RecordingDevice:
    device = RecordingDevice()
    device.launcher = OneAtATime(device)  # type: ignore[assignment]
    return device


@pytest.mark.parametrize("layout", [RankLayout(2, 1), RankLayout(1, 2)], ids=str)
def test_ranks_on_devices_compute_the_same(layout: RankLayout, tmp_path: Path) -> None:
    """Eagerly: a graph captured on a recording device does not wait for another thread's, as NCCL's does."""
    checkpoint = checkpoint_of("llama-tied", tmp_path)
    folder = tmp_path / "split"
    folder.mkdir()
    write_rank_graphs(checkpoint, folder, FILE, "f32", layout)

    def make(rank: int, links: ThreadLinks) -> TorchCudaExecutor:
        return TorchCudaExecutor(
            rank_dir(folder, rank) / FILE,
            device=recording_device(),
            limits=LIMITS,
            dtype="f32",
            kv_cache_bytes=1 << 20,
            graphs=False,
            links=links,
            hidden_size=96,
        )

    got = logits_of(ThreadedRanks(layout, make))
    np.testing.assert_allclose(got, whole(checkpoint, tmp_path), atol=2e-4, rtol=0)


def engine_rank(folder: Path, rank: int, links: ThreadLinks | None) -> TensorRtExecutor:
    directory, steps = engine_folder_of(rank_dir(folder, rank) / FILE, rank_dir(folder, rank) / "engines")
    return TensorRtExecutor(
        directory,
        steps,
        device=recording_device(),
        runtime=FakeRuntime(),
        limits=LIMITS,
        kv_cache_bytes=1 << 20,
        graphs=False,
        links=links,
    )


def test_ranks_of_engines_compute_the_same(tmp_path: Path) -> None:
    """Engines are cut at the sums as well; the sum is made between two of them."""
    checkpoint = checkpoint_of("llama-tied", tmp_path)
    folder = tmp_path / "split"
    folder.mkdir()
    write_rank_graphs(checkpoint, folder, FILE, "f32", RankLayout(2, 1))
    ranks = ThreadedRanks(RankLayout(2, 1), lambda rank, links: engine_rank(folder, rank, links))
    np.testing.assert_allclose(logits_of(ranks), whole(checkpoint, tmp_path), atol=2e-4, rtol=0)
    num_warm_up = 1
    assert [links.num_reduced for links in ranks.links] == [(num_warm_up + 3) * 2 * 2] * 2  # steps * layers * two


def test_a_ranks_engines_are_refused_alone_and_a_stages_anywhere(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama-tied", tmp_path)
    for layout, message in (
        (RankLayout(2, 1), "AllReduce here; an AllReduce is for one of several ranks"),
        (RankLayout(1, 2), "one stage of a pipeline, which executor tensorrt does not run"),
    ):
        folder = tmp_path / str(layout.pipeline_parallel_size)
        folder.mkdir()
        write_rank_graphs(checkpoint, folder, FILE, "f32", layout)
        for rank in range(2):
            with pytest.raises(UnsupportedError, match=message):
                engine_rank(folder, rank, None)
