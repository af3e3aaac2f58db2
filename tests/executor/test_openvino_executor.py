"""What is OpenVINO's own: the operator's version, the kernels it chooses, cache layouts, precisions, errors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from conformance.driver import Driver
from conformance.numpy_reference import NumpyDecoder
from conformance.tiny_graph import TinySpec
from trtdecode.errors import ConfigError, ManifestError, UnsupportedError
from trtdecode.executor.openvino_executor import OpenVinoExecutor
from trtdecode.executor.openvino_native_attention import kernels_in_use
from trtdecode.executor.openvino_paged_attention import check_openvino_version, read_decoder
from trtdecode.executor.openvino_precisions import BF16_PRECISIONS, COMPUTE_PRECISIONS, MIXED_BF16_TOKENS

LLAMA = TinySpec()
HAS_BF16 = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
AVAILABLE_PRECISIONS = [name for name in COMPUTE_PRECISIONS if HAS_BF16 or name not in BF16_PRECISIONS]
TOKENS = np.random.default_rng(1).integers(0, LLAMA.vocab_size, 70).tolist()


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return LLAMA.write(tmp_path)


def test_another_release_of_openvino_is_refused_readably() -> None:
    check_openvino_version("2026.4.1-22982-e213a147257-releases/2026/4")
    with pytest.raises(UnsupportedError) as caught:
        check_openvino_version("2027.0.0-1")
    assert str(caught.value) == (
        "openvino 2027.0.0-1: its internal paged attention operator is known for 2026.4 only; install "
        "openvino==2026.4.1, or run tests/conformance against the new release and list it in "
        "executor/openvino_paged_attention.py"
    )


def test_softcap_is_refused_with_the_alternative(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="softcap 30 is not in OpenVINO's operator; set parameter attention to"):
        OpenVinoExecutor(TinySpec(softcap=30.0).write(tmp_path), kv_cache_bytes=1 << 20, attention="openvino")


def test_a_file_that_is_not_onnx_is_a_manifest_error(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(b"not a graph")
    with pytest.raises(ManifestError, match=r"decoder\.onnx: OpenVINO cannot read it .*; import the model again"):
        OpenVinoExecutor(path, kv_cache_bytes=1 << 20)


@pytest.mark.parametrize(
    ("attention", "kv_cache_precision", "layout", "block_bytes"),
    [
        # 2 layers of K and V: 2 heads * 32 slots * 32 channels * 4 bytes
        ("openvino", "f32", "4 x [64, 2, 32, 32]", 4 * 2 * 32 * 32 * 4),
        # u8: a key block has scale and zero point (f32) a channel, a value one a slot
        ("openvino", "u8", "4 x [64, 2, 40, 32]", 2 * 2 * (40 * 32 + 32 * 40)),
        # K and V of a layer in one
        ("native", "f32", "2 x [64, 2, 32, 64]", 4 * 2 * 32 * 32 * 4),
        # scale and zero point a slot, for keys as well
        ("native", "u8", "2 x [64, 2, 32, 80]", 4 * 2 * 32 * 40),
    ],
)
def test_the_pool_is_sized_by_bytes(
    graph: Path, attention: str, kv_cache_precision: str, layout: str, block_bytes: int
) -> None:
    executor = OpenVinoExecutor(
        graph,
        kv_cache_bytes=64 * block_bytes + block_bytes - 1,
        kv_cache_precision=kv_cache_precision,
        num_threads=1,
        attention=attention,
    )
    assert (executor.num_blocks, executor.block_size) == (64, 32)
    assert executor.describe() == {
        "device": "CPU",
        "graph": "decoder.onnx",
        "openvino": ov.__version__,
        "threads": "1",
        "compute_precision": "f32",
        "attention": attention if attention == "openvino" else f"native {kernels_in_use()}",
        "kv_cache_precision": kv_cache_precision,
        "kv_cache_layout": layout,
        "kv_cache_bytes": str(64 * block_bytes),
    }


def test_a_pool_below_one_block_is_an_error_with_both_numbers(graph: Path) -> None:
    with pytest.raises(ConfigError, match="kv_cache_bytes: 32767 is less than one block of 32768 bytes"):
        OpenVinoExecutor(graph, kv_cache_bytes=32767)


@pytest.mark.parametrize(
    ("precisions", "message"),
    [
        ({"compute_precision": "fp4"}, "compute_precision: the openvino executor has no 'fp4'; use one of f32, int8"),
        ({"kv_cache_precision": "fp8"}, "kv_cache_precision: the openvino executor has no 'fp8'; use one of f32, u8"),
        ({"compute_precision": "mixed"}, "kv_cache_precision: f32 does not go with compute_precision mixed; use u8"),
    ],
)
def test_precisions_that_do_not_exist_or_fit(graph: Path, precisions: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpenVinoExecutor(graph, kv_cache_bytes=1 << 20, **precisions)


def test_bf16_without_the_hardware_is_refused(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ov.Core, "get_property", lambda _core, _device, _name: ["FP32", "INT8"])
    with pytest.raises(ConfigError, match="compute_precision: this CPU has no bfloat16 for mixed; use int8 or f32"):
        OpenVinoExecutor(graph, kv_cache_bytes=1 << 20, kv_cache_precision="u8", compute_precision="mixed")


@pytest.mark.parametrize(
    ("attention", "compute_precision"),
    [(operator, precision) for operator in ("native", "openvino") for precision in AVAILABLE_PRECISIONS],
)
def test_u8_caches_stay_close_and_survive_copies(graph: Path, attention: str, compute_precision: str) -> None:
    """Logits span about 20. A block is copied as bytes, scales included."""
    executor = OpenVinoExecutor(
        graph,
        kv_cache_bytes=1 << 20,
        kv_cache_precision="u8",
        compute_precision=compute_precision,
        attention=attention,
    )
    driver = Driver(executor)
    expected = NumpyDecoder(LLAMA).logits(TOKENS)
    sequence = driver.sequence(TOKENS)
    rows = driver.prefill(sequence, chunk=MIXED_BF16_TOKENS + 1)  # then a step of the other program of `mixed`
    np.testing.assert_allclose(rows, expected, atol=0.5, rtol=0)
    assert np.abs(rows - expected).mean() < 0.1
    sequence.num_computed -= 1
    before = driver.step((sequence, 1))
    sequence.num_computed -= 1
    batch = driver.batch((sequence, 1))
    moved = [executor.num_blocks - 1 - index for index in range(len(sequence.blocks))]
    batch.block_copies = list(zip(sequence.blocks, moved, strict=True))
    batch.block_indices = np.array(moved, np.int32)
    # To OpenVINO's operator, writing the last key again requantises its block, which moves its neighbours a little.
    np.testing.assert_allclose(executor.execute(batch).logits, before, atol=0.02, rtol=0)


def test_decoding_allocates_nothing_that_grows(graph: Path) -> None:
    """Inputs are the batch's own arrays and logits a view of OpenVINO's buffer."""
    driver = Driver(OpenVinoExecutor(graph, kv_cache_bytes=1 << 20))
    sequence = driver.sequence(TOKENS, room=4)
    driver.prefill(sequence)
    addresses = set()
    for token in (1, 2, 3):
        sequence.tokens.append(token)
        logits = driver.executor.execute(driver.batch((sequence, 1))).logits
        assert logits is not None and not logits.flags.owndata
        addresses.add(logits.ctypes.data)
        sequence.num_computed += 1
    assert len(addresses) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "rotations", "operator"),
    [("openvino", 60, "PagedAttentionExtension"), ("native", 0, "Reference")],
)
@pytest.mark.parametrize(
    ("graph_file", "matmul"), [("decoder.onnx", "FullyConnected"), ("decoder.int8.onnx", "FullyConnectedCompressed")]
)
def test_openvino_recognises_the_patterns_that_make_it_fast(
    smollm2_version: Path,
    monkeypatch: pytest.MonkeyPatch,
    attention: str,
    rotations: int,
    operator: str,
    graph_file: str,
    matmul: str,
) -> None:
    """RMSNorm, RoPE and weight-compressed matmul are one kernel each, and attention is paged; ours does RoPE too."""
    compile_model = ov.Core.compile_model
    monkeypatch.setattr(
        ov.Core,
        "compile_model",
        lambda core, model, device, config: compile_model(core, model, device, {**config, "PERF_COUNT": True}),
    )
    executor = OpenVinoExecutor(smollm2_version / graph_file, kv_cache_bytes=1 << 24, attention=attention)
    driver = Driver(executor)
    driver.step((driver.sequence([1, 2, 3]), 3))
    (program,) = executor._programs
    executed = ov.ProfilingInfo.Status.EXECUTED
    kinds = Counter(entry.node_type for entry in program.request.profiling_info if entry.status == executed)
    assert kinds["RMS"] == 61
    assert kinds["RoPE"] == rotations
    assert kinds[operator] == 30
    assert kinds[matmul] == 4 * 30 + 30 + 1  # gate and up are two products here (openvino_rewrite.py)
    assert "SwishCPU" not in kinds  # fused into the gate's product
    assert not {"MatMul", "Transpose", "Concatenation", "Reduce", "Subgraph"} & set(kinds)
    assert kinds["VariadicSplit"] == (0 if attention == "native" else 30)  # of Q, K and V


def test_compiled_models_cannot_be_cached_in_this_release(graph: Path) -> None:
    """OpenVINO's model cache drops what paged attention needs (its rt_info), so loading compiles every time.

    When this fails, a later release has mended it: set CACHE_DIR in openvino_executor.py.
    """
    core = ov.Core()
    properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    blob = core.compile_model(read_decoder(core, graph), "CPU", properties).export_model()
    with pytest.raises(RuntimeError, match="k_head_size and num_k_heads are required"):
        core.import_model(blob, "CPU", properties)


def test_operators_are_counted_when_asked(graph: Path) -> None:
    executor = OpenVinoExecutor(graph, kv_cache_bytes=1 << 20, num_threads=1, count_operators=True, attention="native")
    driver = Driver(executor)
    driver.prefill(driver.sequence(TOKENS))
    seconds = executor.operator_seconds(len(TOKENS))
    assert "PagedAttention" in seconds
    assert "Reference" not in seconds
    assert all(value > 0 for value in seconds.values())
