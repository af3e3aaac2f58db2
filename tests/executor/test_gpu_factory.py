"""From a configuration and a version folder to an executor on a (recording) GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conformance.driver import Driver
from conformance.numpy_reference import NumpyDecoder
from executor.fake_tensorrt import CuttableSpec, FakeRuntime, write_engine_folder
from executor.recording_device import RecordingDevice
from trtdecode.config import ServingConfig
from trtdecode.errors import ManifestError
from trtdecode.executor.engine_files import graph_digest
from trtdecode.executor.gpu_factory import (
    GpuOptions,
    engine_precision,
    limits_of,
    runtime_cache_file,
    tensorrt_executor_on,
)
from trtdecode.manifest import EngineSet, Manifest, ModelSpec, entry_of
from trtdecode.support import engine_directory

SPEC = CuttableSpec(
    num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, mlp_size=16, vocab_size=19, max_positions=64
)
MODEL = ModelSpec("llama", 1, 32, 2, 1, 16, 19, 64, (0,))
CONFIG = ServingConfig(max_num_seqs=2, max_num_batched_tokens=32, kv_cache_bytes=1 << 18)
RTX = "tensorrt-rtx"


def engines(precision: str, sm: int = 90, flavour: str = RTX) -> EngineSet:
    return EngineSet(engine_directory(precision, sm), precision, sm, flavour, "0", "", (), "")


@pytest.fixture
def version(tmp_path: Path) -> tuple[Path, Manifest]:
    """A version whose fp16 engines for SM 89 are interpreted segments."""
    SPEC.write(tmp_path)
    graph = {name: entry_of(tmp_path / name) for name in ("decoder.onnx", "decoder.onnx.data")}
    manifest = Manifest(MODEL, "test", {"f32": "decoder.onnx"}, graph, (engines("fp16", 89),))
    key = {
        "flavour": RTX,
        "builder_version": "0",
        "sm": "89",
        "precision": "fp16",
        "graph": graph_digest(manifest, "decoder.onnx"),
    }
    folder, _ = write_engine_folder(SPEC, tmp_path / engine_directory("fp16", 89), key=key)
    files = {str(path.relative_to(tmp_path)): entry_of(path) for path in folder.iterdir()}
    return tmp_path, replace(manifest, files={**graph, **files})


def test_a_version_with_engines_becomes_an_executor(version: tuple[Path, Manifest]) -> None:
    directory, manifest = version
    executor = tensorrt_executor_on(
        RecordingDevice(sm=89), FakeRuntime(), CONFIG, manifest, directory, GpuOptions(graph_batch_sizes=(2,))
    )
    driver = Driver(executor, list(range(1, executor.num_blocks)))
    sequence = driver.sequence([3, 1, 4], room=2)
    driver.prefill(sequence)
    sequence.tokens.append(1)
    (row,) = driver.step((sequence, 1))
    assert row == pytest.approx(NumpyDecoder(SPEC).logits([3, 1, 4, 1])[-1], abs=1e-4)
    facts = executor.describe()
    assert (facts["engines"], facts["cuda_graphs"]) == ("tensorrt-rtx 0, SM 89", "2")


@pytest.mark.parametrize("damaged", ["tables.safetensors", "segment_000.onnx"])
def test_a_changed_file_is_refused_before_it_is_opened(version: tuple[Path, Manifest], damaged: str) -> None:
    directory, manifest = version
    path = directory / engine_directory("fp16", 89) / damaged
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ManifestError, match=rf"{damaged}.*sha256 differs"):
        tensorrt_executor_on(RecordingDevice(sm=89), FakeRuntime(), CONFIG, manifest, directory, GpuOptions())


def test_engines_of_another_builder_name_both_versions(version: tuple[Path, Manifest]) -> None:
    directory, manifest = version
    with pytest.raises(ManifestError, match=r"builder_version is 0, now 1\.8; build with `trtdecode build"):
        tensorrt_executor_on(
            RecordingDevice(sm=89), FakeRuntime(version="1.8"), CONFIG, manifest, directory, GpuOptions()
        )


def test_which_precision_is_served() -> None:
    auto, int8 = ServingConfig(), GpuOptions(engine_precision="int8")
    built = [engines("int4"), engines("fp8"), engines("fp16", 89), engines("bf16", 90, "tensorrt")]
    assert engine_precision(auto, GpuOptions(), built, 90, RTX) == "fp8"
    assert engine_precision(auto, int8, built, 90, RTX) == "int8"
    assert engine_precision(replace(auto, precision="int4"), int8, built, 90, RTX) == "int4"
    assert engine_precision(replace(auto, precision="f16"), GpuOptions(), built, 90, RTX) == "fp16"
    assert engine_precision(replace(auto, build_missing_engines=True), GpuOptions(), built, 80, RTX) == "fp16"
    with pytest.raises(ManifestError, match=r"none for SM 80 with tensorrt-rtx \(present: bf16 for SM 90 \(tensorrt\)"):
        engine_precision(auto, GpuOptions(), built, 80, RTX)


def test_limits_follow_configuration_and_model() -> None:
    assert limits_of(CONFIG, MODEL).max_context_len == 64
    assert limits_of(replace(CONFIG, max_context_len=40), MODEL).max_context_len == 40
    assert limits_of(replace(CONFIG, max_context_len=900), MODEL).max_context_len == 64


def test_the_runtime_cache_is_named_by_gpu_and_driver(tmp_path: Path) -> None:
    module = tmp_path / "version"
    assert runtime_cache_file(tmp_path, 89, module).name == "sm89-driverunknown.bin"
    module.write_text("580.159.04\n")
    assert runtime_cache_file(tmp_path, 89, module) == tmp_path / "runtime_cache" / "sm89-driver580.159.04.bin"
