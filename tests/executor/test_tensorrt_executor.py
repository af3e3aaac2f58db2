"""The TensorRT executor on the recording device, its engines interpreted: contexts, buffers, captures and tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conformance.driver import Driver
from conformance.numpy_reference import NumpyDecoder
from executor.fake_tensorrt import SCRATCH_PER_TOKEN, CuttableSpec, FakeRuntime, write_engine_folder
from executor.recording_device import RecordingDevice
from trtdecode.errors import ConfigError, ManifestError, UnsupportedError
from trtdecode.executor.device_step import StepLimits
from trtdecode.executor.engine_steps import EngineStep, EngineSteps, GatherStep, SeamStep, TensorSpec, TokenProfile
from trtdecode.executor.tensorrt_executor import TensorRtExecutor, attention_seams, query_type
from trtdecode.executor.tensorrt_runtime import TensorRtRuntime
from trtdecode.executor.value_buffers import ValueBuffers

SPEC = CuttableSpec(
    num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, mlp_size=32, vocab_size=37, max_positions=64
)
LIMITS = StepLimits(max_num_seqs=4, max_num_batched_tokens=32, max_context_len=64)


def make_executor(
    tmp_path: Path, device: RecordingDevice, runtime: FakeRuntime | None = None, **options: object
) -> TensorRtExecutor:
    directory, steps = write_engine_folder(SPEC, tmp_path / "engines")
    settings: dict[str, object] = {"kv_cache_bytes": 1 << 20, "graph_batch_sizes": (2, 4), "limits": LIMITS, **options}
    return TensorRtExecutor(directory, steps, device=device, runtime=runtime or FakeRuntime(), **settings)  # type: ignore[arg-type]


def blocks_of(executor: TensorRtExecutor) -> list[int]:
    return list(range(1, executor.num_blocks))


def test_tokens_through_engines_kernels_and_graphs(tmp_path: Path) -> None:
    executor = make_executor(tmp_path, RecordingDevice())
    driver, reference = Driver(executor, blocks_of(executor)), NumpyDecoder(SPEC)
    sequences = [driver.sequence(tokens, room=10) for tokens in ([5, 9, 2], [7], [11, 3, 8, 30, 1, 4])]
    logits = driver.step(*((s, len(s.tokens)) for s in sequences))
    for alive in (sequences, sequences[:2], sequences[:1]):
        np.testing.assert_allclose(
            logits[: len(alive)], [reference.logits(s.tokens)[-1] for s in alive], atol=1e-4, rtol=0
        )
        for row, sequence in enumerate(alive):
            sequence.tokens.append(int(logits[row].argmax()))
        logits = driver.step(*((s, 1) for s in alive))
    assert (executor._runner.num_replayed, executor._runner.num_eager) == (3, 1)


def test_every_row_of_a_prompt_has_logits(tmp_path: Path) -> None:
    """Prompt logprobs want more rows than there are sequences: buffers grow, and captured graphs still work after."""
    executor = make_executor(tmp_path, RecordingDevice())
    driver, reference = Driver(executor, blocks_of(executor)), NumpyDecoder(SPEC)
    for tokens in ([5, 9, 2, 7, 1, 30, 4], list(range(1, 12))):
        sequence = driver.sequence(tokens, room=3)
        np.testing.assert_allclose(driver.prefill(sequence), reference.logits(tokens), atol=1e-4, rtol=0)
        sequence.tokens.append(3)
        np.testing.assert_allclose(driver.step((sequence, 1)), reference.logits(sequence.tokens)[-1:], atol=1e-4)
    assert executor._runner.num_replayed == 2


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


def test_contexts_share_one_scratch_buffer(tmp_path: Path) -> None:
    executor = make_executor(tmp_path, RecordingDevice())
    report = executor._pass.report
    num_engines = len(executor._steps.segment_files)
    assert num_engines == SPEC.num_layers + 1
    assert report.num_contexts == num_engines * 3  # eager, 2 and 4
    assert report.per_size == {2: 2 * SCRATCH_PER_TOKEN, 4: 4 * SCRATCH_PER_TOKEN}
    assert report.scratch_bytes == 32 * SCRATCH_PER_TOKEN  # the prefill profile's, the largest of all
    scratch = {c.scratch for contexts in executor._pass._captured.values() for c in contexts.values()}  # type: ignore[attr-defined]
    assert scratch == {c.scratch for c in executor._pass._eager.values()}  # type: ignore[attr-defined]
    assert len(scratch) == 1
    described = executor.describe()["contexts"]
    assert described.startswith("9 contexts, ") and "one scratch buffer of 3200 device bytes" in described


def test_the_order_of_loading(tmp_path: Path) -> None:
    """The pool takes what is left after scratch and buffers; captures come last, each after its warm-up."""
    device, runtime = RecordingDevice(), FakeRuntime()
    executor = make_executor(tmp_path, device, runtime, kv_cache_bytes=0, kv_cache_fraction=0.5)
    assert executor.num_blocks == (1 << 23) // executor._pool.block_bytes
    interesting = [call for call in device.calls if call in ("enqueue", "capture", "allocate")]
    assert "allocate" not in interesting[interesting.index("enqueue") :]
    engines = len(executor._steps.segment_files)
    assert interesting[interesting.index("enqueue") :] == [
        *["enqueue"] * engines,
        *[*["enqueue"] * engines, "capture", *["enqueue"] * engines] * 2,
        *["capture"] * 2,  # the choice of tokens behind each
    ]
    assert runtime.num_saves == 1


def test_engines_that_cannot_be_captured_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"segment_000\.onnx: this engine cannot be captured.*REQUIRE_USER"):
        make_executor(tmp_path, RecordingDevice(), FakeRuntime(capturable=False))
    make_executor(tmp_path, RecordingDevice(), FakeRuntime(capturable=False), graphs=False, graph_batch_sizes=())


def test_limits_beyond_the_engines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens: 64, but the engines hold 32 tokens a step"):
        make_executor(tmp_path, RecordingDevice(), limits=StepLimits(4, 64, 64))


def test_fp8_pages_are_refused_before_sm_89(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="int8"):
        make_executor(tmp_path, RecordingDevice(sm=86), kv_cache_precision="fp8")


def test_damaged_tables_are_refused(tmp_path: Path) -> None:
    directory, steps = write_engine_folder(SPEC, tmp_path / "engines")
    path = directory / "tables.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ManifestError, match=r"tables\.safetensors: not readable .*trtdecode build"):
        TensorRtExecutor(
            directory, steps, device=RecordingDevice(), runtime=FakeRuntime(), limits=LIMITS, kv_cache_bytes=1 << 20
        )


def test_seams_carry_their_attributes(tmp_path: Path) -> None:
    _, steps = write_engine_folder(SPEC, tmp_path / "engines")
    seams = attention_seams(steps)
    assert [(spec.num_heads, spec.num_kv_heads, spec.head_dim) for spec in seams.values()] == [(4, 2, 16)] * 2
    assert query_type(steps) == "f32"


# -- buffers ----------------------------------------------------------------------------------------------------------


def chain() -> EngineSteps:
    """ids -> a -> (q, r) -> o -> out: `r` lives across the seam."""
    tensors = {name: TensorSpec("f16", ("T", 64)) for name in ("a", "q", "r", "o", "out")}
    attributes = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 64, "scale": 1.0}
    return EngineSteps(
        precision="fp16",
        sm=90,
        flavour="tensorrt",
        builder_version="0",
        source_graph="f32",
        profiles=(TokenProfile("decode", 1, 8, 8),),
        steps=(
            GatherStep("table", "input_ids", "a"),
            EngineStep("e0", ("a",), ("q", "r"), "T"),
            SeamStep("PagedAttention", "attention", ("q", "q", "q"), "o", attributes),
            EngineStep("e1", ("o", "r"), ("out",), "T"),
        ),
        tensors=tensors,
        output="out",
        engines={},
    )


def test_values_share_memory_when_their_lives_do_not_overlap() -> None:
    values = ValueBuffers(RecordingDevice(), chain(), max_tokens=8, max_rows=8)
    size = 8 * 64 * 2
    base = values.address("a")
    places = {name: (values.address(name) - base) // size for name in ("a", "q", "r", "o", "out")}
    assert places == {"a": 0, "q": 1, "r": 2, "o": 0, "out": 1}
    assert values.num_bytes == 3 * size


def test_a_views_address_depends_on_its_name_alone() -> None:
    values = ValueBuffers(RecordingDevice(), chain(), max_tokens=8, max_rows=8)
    assert values.view("q", 3, 1).shape == (3, 64)
    assert values.view("q", 3, 1).data_ptr() == values.view("q", 8, 1).data_ptr() == values.address("q")
    assert values.view("q", 8, 1).dtype == torch.float16


# -- the real runtime, as far as it goes without a GPU -----------------------------------------------------------------


def test_a_missing_flavour_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", _no_module)
    with pytest.raises(UnsupportedError, match="tensorrt: No module named 'tensorrt'; install it"):
        TensorRtRuntime("tensorrt")


def _no_module(name: str) -> None:
    raise ImportError(f"No module named {name!r}")


def test_the_names_we_use_exist_in_tensorrt_rtx() -> None:
    """Without a GPU nothing deserializes, so at least every attribute that the adapter touches must be there."""
    trt = pytest.importorskip("tensorrt_rtx")
    assert {"USER_MANAGED"} <= set(dir(trt.ExecutionContextAllocationStrategy))
    assert {"EAGER"} <= set(dir(trt.DynamicShapesKernelSpecializationStrategy))
    assert {"DISABLED"} <= set(dir(trt.CudaGraphStrategy))
    for owner, names in {
        trt.Runtime: ("deserialize_cuda_engine",),
        trt.ICudaEngine: (
            "create_runtime_config",
            "create_execution_context",
            "get_device_memory_size_for_profile_v2",
            "num_optimization_profiles",
        ),
        trt.IExecutionContext: (
            "set_optimization_profile_async",
            "set_input_shape",
            "set_tensor_address",
            "set_device_memory",
            "update_device_memory_size_for_shapes",
            "is_stream_capturable",
            "execute_async_v3",
        ),
        trt.IRuntimeConfig: (
            "set_execution_context_allocation_strategy",
            "dynamic_shapes_kernel_specialization_strategy",
            "cuda_graph_strategy",
            "create_runtime_cache",
            "set_runtime_cache",
        ),
        trt.IRuntimeCache: ("serialize", "deserialize"),
    }.items():
        assert [name for name in names if not hasattr(owner, name)] == []
