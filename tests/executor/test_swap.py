"""Swapping on every executor: K/V go to the host pool, others use the blocks, and they come back unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance.driver import Driver
from conformance.numpy_reference import NumpyDecoder
from conformance.tiny_graph import TinySpec
from executor.recording_device import RecordingDevice
from trtdecode.errors import ConfigError
from trtdecode.executor.device_step import StepLimits
from trtdecode.executor.kv_pool import host_blocks_in_budget
from trtdecode.executor.openvino_executor import OpenVinoExecutor
from trtdecode.executor.torch_cuda_executor import TorchCudaExecutor
from trtdecode.executor.torch_executor import TorchExecutor

SPEC = TinySpec(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, mlp_size=32, vocab_size=37, max_positions=128)
POOL_BYTES = 1 << 20


def on_device(graph: Path, **options: Any) -> TorchCudaExecutor:
    """The GPU executors' pool and runner, captured steps included, on the device that records every call."""
    limits = StepLimits(max_num_seqs=4, max_num_batched_tokens=128, max_context_len=128)
    return TorchCudaExecutor(
        graph, device=RecordingDevice(), limits=limits, dtype="f32", graph_batch_sizes=(1, 2), **options
    )


MAKERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "torch": (TorchExecutor, {}),
    "openvino-f32": (OpenVinoExecutor, {"num_threads": 1}),
    "openvino-u8": (OpenVinoExecutor, {"num_threads": 1, "kv_cache_precision": "u8"}),
    "device-f32": (on_device, {}),
    "device-int8": (on_device, {"kv_cache_precision": "int8"}),
}


@pytest.fixture(params=MAKERS)
def executor(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    make, options = MAKERS[request.param]
    return make(SPEC.write(tmp_path), kv_cache_bytes=POOL_BYTES, swap_space_bytes=POOL_BYTES, **options)


def test_what_was_swapped_out_comes_back_elsewhere(executor: Any) -> None:
    """A prompt of 70 tokens waits in the host pool while another uses its blocks, then goes on in other blocks."""
    assert executor.num_host_blocks == executor.num_blocks
    driver, reference = Driver(executor), NumpyDecoder(SPEC)
    tokens = np.random.default_rng(0).integers(0, 37, 70).tolist()
    stays = driver.sequence(tokens, room=2)
    goes = driver.sequence(tokens, room=2)
    for sequence in (stays, goes):
        driver.prefill(sequence)
        sequence.tokens.append(3)
    num_blocks = -(-70 // executor.block_size)
    host_ids = [executor.num_host_blocks - 1 - index for index in range(num_blocks)]
    other = driver.sequence([9, 8, 7], room=0)
    batch = driver.batch((other, 3))
    batch.swap_outs = list(zip(goes.blocks, host_ids, strict=False))
    executor.execute(batch)
    intruder = driver.sequence([1] * 70)
    intruder.blocks = goes.blocks  # the freed blocks are written by somebody else
    driver.prefill(intruder)
    goes.blocks = driver.sequence([0] * len(goes.tokens)).blocks
    batch = driver.batch((stays, 1), (goes, 1))
    batch.swap_ins = list(zip(host_ids, goes.blocks, strict=False))
    logits = executor.execute(batch).logits
    assert logits is not None
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)
    np.testing.assert_allclose(logits[0], reference.logits(goes.tokens)[-1], atol=0.3)


def test_a_block_may_leave_and_arrive_in_one_step(executor: Any) -> None:
    """Out comes first: two sequences change places in the pool within one batch."""
    driver = Driver(executor)
    first, second = driver.sequence([5, 9, 2], room=1), driver.sequence([7, 7], room=1)
    expected = []
    for sequence, token in ((first, 4), (second, 6)):
        driver.prefill(sequence)
        sequence.tokens.append(token)
    for sequence in (first, second):
        copy = driver.sequence(sequence.tokens)
        expected.append(driver.prefill(copy)[-1])
    a, b = first.blocks[0], second.blocks[0]
    first.blocks, second.blocks = [b], [a]
    batch = driver.batch((first, 1), (second, 1))
    batch.swap_outs, batch.swap_ins = [(a, 0), (b, 1)], [(0, b), (1, a)]
    logits = executor.execute(batch).logits
    assert logits is not None
    np.testing.assert_allclose(logits, np.stack(expected), atol=2e-2)


def test_less_than_one_block_is_refused_and_nothing_is_none() -> None:
    assert [host_blocks_in_budget(size, 100) for size in (0, 100, 250)] == [0, 1, 2]
    with pytest.raises(ConfigError, match="swap_space_bytes: 99 is less than one block of 100 bytes"):
        host_blocks_in_budget(99, 100)
