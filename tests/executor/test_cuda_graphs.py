"""CUDA graphs on the recording device: right tokens through capture and replay, and each rule's breach is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conformance.driver import Driver
from conformance.numpy_reference import NumpyDecoder
from conformance.tiny_graph import TinySpec
from executor.recording_device import DeviceRuleError, RecordingDevice
from trtdecode.errors import ConfigError
from trtdecode.executor.base import Batch
from trtdecode.executor.cuda_graphs import DecodeGraphs, StepOutput, graph_sizes, is_decode
from trtdecode.executor.device_runner import output_of
from trtdecode.executor.device_step import DeviceStep, StepBuffer, StepLimits
from trtdecode.executor.torch_cuda_executor import TorchCudaExecutor

SPEC = TinySpec(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, mlp_size=32, vocab_size=37, max_positions=64)
LIMITS = StepLimits(max_num_seqs=4, max_num_batched_tokens=32, max_context_len=64)


def make_executor(tmp_path: Path, device: RecordingDevice, **options: object) -> TorchCudaExecutor:
    settings: dict[str, object] = {"dtype": "f32", "kv_cache_bytes": 1 << 20, "graph_batch_sizes": (2, 4), **options}
    return TorchCudaExecutor(SPEC.write(tmp_path), device=device, limits=LIMITS, **settings)  # type: ignore[arg-type]


def blocks_of(executor: TorchCudaExecutor) -> list[int]:
    return list(range(1, executor.num_blocks))  # 0 is the null block


def test_replayed_decode_gives_the_reference_tokens(tmp_path: Path) -> None:
    """Three sequences padded to four, then two, then one padded to two, against a decoder without cache or batches."""
    device = RecordingDevice()
    executor = make_executor(tmp_path, device)
    driver, reference = Driver(executor, blocks_of(executor)), NumpyDecoder(SPEC)
    prompts = [[5, 9, 2], [7], [11, 3, 8, 30, 1, 4]]
    sequences = [driver.sequence(tokens, room=10) for tokens in prompts]
    driver.step(*((s, len(s.tokens)) for s in sequences))
    for alive in (sequences, sequences[:2], sequences[:1]):
        for _ in range(2):
            for sequence in alive:
                sequence.tokens.append(int(reference.logits(sequence.tokens)[-1].argmax()))
            logits = driver.step(*((s, 1) for s in alive))
            expected = np.stack([reference.logits(s.tokens)[-1] for s in alive])
            np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)
    runner = executor._runner
    assert (runner.num_replayed, runner.num_eager) == (6, 1)


def test_the_calls_of_a_replayed_step(tmp_path: Path) -> None:
    """One copy in, one replay, one copy out, one wait: nothing is launched, enqueued or allocated by the host."""
    device = RecordingDevice()
    executor = make_executor(tmp_path, device)
    driver = Driver(executor, blocks_of(executor))
    sequences = [driver.sequence([1, 2], room=4), driver.sequence([3, 4], room=4)]
    driver.step(*((s, 2) for s in sequences))
    for sequence in sequences:
        sequence.tokens.append(5)
    batch = driver.batch(*((s, 1) for s in sequences), argmax_only=True)
    device.calls.clear()
    result = executor.execute(batch)
    # The kernels' own names appear because the replay really launches what was captured.
    assert [call for call in device.calls if not call.startswith(("kv_", "attend"))] == [
        "copy",
        "replay",
        "copy",
        "synchronize",
    ]
    assert result.logits is None
    assert result.argmax is not None and result.argmax.shape == (2,)


def test_each_size_is_warmed_up_then_captured_largest_first(tmp_path: Path) -> None:
    device = RecordingDevice()
    make_executor(tmp_path, device)
    order = [call for call in device.calls if call in ("run", "capture", "synchronize", "replay")]
    # The steps first, then the choice of tokens behind each.
    assert order == ["run", "synchronize", *["run", "synchronize", "capture"] * 4]


def test_larger_and_mixed_batches_run_eagerly(tmp_path: Path) -> None:
    executor = make_executor(tmp_path, RecordingDevice(), graph_batch_sizes=(1, 2))
    driver, reference = Driver(executor, blocks_of(executor)), NumpyDecoder(SPEC)
    sequences = [driver.sequence([token], room=8) for token in (3, 4, 5)]
    for _ in range(2):
        logits = driver.step(*((s, 1) for s in sequences))
        np.testing.assert_allclose(logits, [reference.logits(s.tokens)[-1] for s in sequences], atol=1e-4, rtol=0)
        for sequence in sequences:
            sequence.tokens.append(6)
    long = driver.sequence([1, 2, 3], room=2)
    logits = driver.step((sequences[0], 1), (long, 3))
    np.testing.assert_allclose(
        logits, [reference.logits(s.tokens)[-1] for s in (sequences[0], long)], atol=1e-4, rtol=0
    )
    assert executor._runner.num_replayed == 0


def test_a_chunk_that_wants_no_logits(tmp_path: Path) -> None:
    executor = make_executor(tmp_path, RecordingDevice())
    driver, reference = Driver(executor, blocks_of(executor)), NumpyDecoder(SPEC)
    sequence = driver.sequence([5, 9, 2, 7, 1], room=3)
    batch = replace(driver.batch((sequence, 3)), logit_indices=np.zeros(0, np.int64))
    for argmax_only in (False, True):
        result = executor.execute(replace(batch, argmax_only=argmax_only))
        assert (result.argmax if argmax_only else result.logits).shape[0] == 0  # type: ignore[union-attr]
    sequence.num_computed = 3
    np.testing.assert_allclose(driver.step((sequence, 2)), reference.logits(sequence.tokens)[-1:], atol=1e-4)


def test_graphs_off_runs_everything_eagerly(tmp_path: Path) -> None:
    device = RecordingDevice()
    executor = make_executor(tmp_path, device, graphs=False, graph_batch_sizes=())
    driver = Driver(executor, blocks_of(executor))
    driver.step((driver.sequence([1], room=2), 1))
    assert "capture" not in device.calls
    assert executor.describe()["cuda_graphs"] == "off"


def test_block_copies_and_quantised_pages(tmp_path: Path) -> None:
    """A forked block continues as its source; int8 pages stay close to f32."""
    executor = make_executor(tmp_path, RecordingDevice(), kv_cache_precision="int8")
    driver, reference = Driver(executor, blocks_of(executor)), NumpyDecoder(SPEC)
    sequence = driver.sequence([5, 9, 2], room=4)
    driver.step((sequence, 3))
    fork = driver.sequence([5, 9, 2], room=4)
    fork.num_computed = 3
    for one in (sequence, fork):
        one.tokens.append(7)
    batch = driver.batch((sequence, 1), (fork, 1))
    batch.block_copies.append((sequence.blocks[0], fork.blocks[0]))
    logits = executor.execute(batch).logits
    assert logits is not None
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-6)
    np.testing.assert_allclose(logits[0], reference.logits([5, 9, 2, 7])[-1], atol=0.25)
    assert executor.describe()["kv_cache_precision"] == "int8"


# -- sizes and batches ----------------------------------------------------------------------------------------------


def test_default_ladder_and_graph_spec() -> None:
    assert graph_sizes(1) == (1,)
    assert graph_sizes(64) == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert graph_sizes(50) == (1, 2, 4, 8, 16, 24, 32, 48, 50)
    assert graph_sizes(64, (8, 1, 8)) == (1, 8)
    with pytest.raises(ConfigError, match=r"batch_size: got 128; must be in 1\.\.max_num_seqs \(64\)"):
        graph_sizes(64, (8, 128))


def decode_batch(num_rows: int) -> Batch:
    rows = np.arange(num_rows)
    return Batch(
        input_ids=rows.astype(np.int64),
        positions=np.full(num_rows, 3, np.int64),
        past_lens=np.full(num_rows, 3, np.int32),
        query_begins=np.arange(num_rows + 1, dtype=np.int32),
        block_indices=(1 + rows).astype(np.int32),
        block_begins=np.arange(num_rows + 1, dtype=np.int32),
        max_context_len=4,
        logit_indices=rows.astype(np.int64),
    )


def test_what_counts_as_a_decode_batch() -> None:
    batch = decode_batch(3)
    assert is_decode(batch)
    assert not is_decode(replace(batch, logit_indices=batch.logit_indices[:2]))
    assert not is_decode(replace(batch, logit_indices=batch.logit_indices[::-1]))
    assert not is_decode(replace(batch, query_begins=np.array([0, 0, 1, 3], np.int32)))


def test_padding_rows_are_empty_and_write_to_the_null_block() -> None:
    device = RecordingDevice()
    buffer = StepBuffer(device, LIMITS, block_size=16)
    buffer.stage(decode_batch(4))  # leaves rows behind that padding must overwrite
    step = buffer.stage(decode_batch(2), num_rows=4)
    assert step.input_ids.tolist() == [0, 1, 0, 0]
    assert step.slots.tolist() == [16 + 3, 32 + 3, 0, 0]
    assert step.logit_indices.tolist() == [0, 1, 2, 3]
    assert step.ragged.context_lens.tolist() == [4, 4, 0, 0]
    assert step.ragged.query_begins.tolist() == [0, 1, 2, 3, 4]
    assert step.ragged.block_begins.tolist() == [0, 1, 2, 2, 2]
    assert (step.ragged.has_decode, step.ragged.has_prefill) == (True, False)


def test_slots_of_a_ragged_batch() -> None:
    """Two sequences in blocks [5, 2] and [7]: tokens 15..17 of the first cross a block, token 0 of the second."""
    batch = Batch(
        input_ids=np.array([1, 2, 3, 4]),
        positions=np.array([15, 16, 17, 0]),
        past_lens=np.array([15, 0], np.int32),
        query_begins=np.array([0, 3, 4], np.int32),
        block_indices=np.array([5, 2, 7], np.int32),
        block_begins=np.array([0, 2, 3], np.int32),
        max_context_len=18,
        logit_indices=np.array([2, 3]),
    )
    step = StepBuffer(RecordingDevice(), LIMITS, block_size=16).stage(batch)
    assert step.slots.tolist() == [5 * 16 + 15, 2 * 16, 2 * 16 + 1, 7 * 16]
    assert step.ragged.context_lens.tolist() == [18, 1]
    assert (step.ragged.has_decode, step.ragged.has_prefill) == (True, True)


def test_a_batch_beyond_the_limits_is_an_assertion() -> None:
    buffer = StepBuffer(RecordingDevice(), LIMITS, block_size=16)
    with pytest.raises(AssertionError, match="a batch of 5 sequences; the executor was made for 4"):
        buffer.stage(decode_batch(5))


# -- the rules --------------------------------------------------------------------------------------------------------


class Scene:
    """A forward pass small enough to break: logits = table[input_ids] + length."""

    def __init__(self, forward: Callable[[Scene, DeviceStep], torch.Tensor] | None = None) -> None:
        self.device = RecordingDevice()
        self.buffer = StepBuffer(self.device, LIMITS, block_size=16)
        self.table = self.device.allocate((8, 5), torch.float32)
        self.table.copy_(torch.arange(40.0).reshape(8, 5))
        self._forward = forward or Scene.honest
        self.graphs = DecodeGraphs(self.device, self.buffer, self.forward, (2,))

    def forward(self, step: DeviceStep) -> StepOutput:
        return output_of(self._forward(self, step))

    def honest(self, step: DeviceStep) -> torch.Tensor:
        return self.table[step.input_ids] + step.ragged.context_lens[:, None].float()


def test_an_honest_pass_replays_new_inputs() -> None:
    scene = Scene()
    scene.graphs.capture()
    for base in (0, 3):
        batch = replace(decode_batch(2), input_ids=np.array([base, base + 1]))
        output = scene.graphs.replay(batch, 2)
        expected = scene.table[base : base + 2] + 4
        torch.testing.assert_close(output.logits, expected)
        assert output.argmax.tolist() == [4, 4]


def test_capture_before_warm_up_is_caught() -> None:
    scene = Scene()
    step = scene.buffer.stage_padding(2)
    with pytest.raises(DeviceRuleError, match=r"capture before warm-up: .* run the step once before capture"):
        scene.device.capture(lambda: scene.forward(step))


@pytest.mark.parametrize("read", ["item", "tolist", "int", "numpy"])
def test_a_length_read_on_the_host_is_caught(read: str) -> None:
    readers: dict[str, Callable[[torch.Tensor], int]] = {
        "item": lambda lens: lens[0].item(),
        "tolist": lambda lens: lens.tolist()[0],
        "int": lambda lens: int(lens[0]),
        "numpy": lambda lens: lens.numpy()[0],
    }
    scene = Scene(lambda scene, step: scene.table[step.input_ids] + readers[read](step.ragged.context_lens))
    with pytest.raises(DeviceRuleError, match=r"host read .*while capturing"):
        scene.graphs.capture()


def test_a_length_frozen_by_the_host_gives_wrong_logits() -> None:
    """Read from the host's own side it cannot be refused, but replay shows it, as on a GPU."""
    scene = Scene(lambda scene, step: scene.table[step.input_ids] + int(scene.buffer.host["context_lens"][0]))
    scene.graphs.capture()
    output = scene.graphs.replay(replace(decode_batch(2), input_ids=np.array([0, 1])), 2)
    assert not torch.allclose(output.logits, scene.table[:2] + 4)


def test_allocation_in_replay_is_caught() -> None:
    scene = Scene()
    scene.graphs.capture()
    with scene.device.replaying(), pytest.raises(DeviceRuleError, match="allocation in replay"):
        scene.device.allocate((1,), torch.float32)
    with scene.device.replaying(), pytest.raises(DeviceRuleError, match=r"allocation in replay: aten.* made a tensor"):
        scene.table + 1
    with scene.device.replaying(), pytest.raises(DeviceRuleError, match="eager work on the path of a replayed step"):
        scene.device.run(lambda: None)


def test_allocation_and_synchronisation_in_capture_are_caught() -> None:
    def allocates(scene: Scene, step: DeviceStep) -> torch.Tensor:
        return scene.device.allocate((step.num_tokens, 5), torch.float32)

    with pytest.raises(DeviceRuleError, match="allocation in capture"):
        Scene(allocates).graphs.capture()

    def waits(scene: Scene, step: DeviceStep) -> torch.Tensor:
        scene.device.synchronize()
        return scene.honest(step)

    with pytest.raises(DeviceRuleError, match="synchronize while capturing"):
        Scene(waits).graphs.capture()


@pytest.mark.parametrize(("array", "value"), [("context_lens", 1), ("slots", 16 + 5)])
def test_wrong_padding_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, array: str, value: int) -> None:
    """A padding row with a length would attend to what lies there; with a real slot it would overwrite a sequence."""
    executor = make_executor(tmp_path, RecordingDevice())
    driver = Driver(executor, blocks_of(executor))
    sequence = driver.sequence([1], room=4)
    pad = StepBuffer._pad

    def wrong(self: StepBuffer, batch: Batch, padding: int) -> None:
        pad(self, batch, padding)
        self.host[array][batch.num_sequences] = value

    monkeypatch.setattr(StepBuffer, "_pad", wrong)
    with pytest.raises(DeviceRuleError, match="wrong padding"):
        driver.step((sequence, 1))
