"""From a configuration and a version folder to a running executor."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conformance.driver import Driver
from conformance.numpy_reference import NumpyDecoder
from conformance.tiny_graph import TinySpec
from trtdecode.config import ServingConfig
from trtdecode.errors import ManifestError
from trtdecode.executor.factory import create_executor
from trtdecode.manifest import Manifest, ModelSpec, entry_of

TINY = TinySpec()
SPEC = ModelSpec("llama", 2, TINY.hidden_size, 6, 2, 32, TINY.vocab_size, 512, (0, 0))


@pytest.fixture
def version(tmp_path: Path) -> tuple[Path, Manifest]:
    TINY.write(tmp_path)
    files = {name: entry_of(tmp_path / name) for name in ("decoder.onnx", "decoder.onnx.data")}
    return tmp_path, Manifest(spec=SPEC, source="test", graphs={"f32": "decoder.onnx"}, files=files)


@pytest.mark.parametrize(("executor", "block_size"), [("auto", 32), ("openvino", 32), ("torch", 16)])
def test_a_version_becomes_an_executor(version: tuple[Path, Manifest], executor: str, block_size: int) -> None:
    directory, manifest = version
    config = ServingConfig(executor=executor, kv_cache_bytes=1 << 20)
    made, choice = create_executor(config, manifest, directory, device_kind="CPU", device_id=-1)
    assert choice.executor == made.name == ("openvino" if executor == "auto" else executor)
    assert (made.block_size, made.num_blocks) == (block_size, (1 << 20) // (block_size * 2 * 2 * 2 * 32 * 4))
    driver = Driver(made)
    tokens = [5, 9, 77]
    expected = NumpyDecoder(TINY).logits(tokens)
    np.testing.assert_allclose(driver.prefill(driver.sequence(tokens)), expected, atol=1e-4, rtol=0)
    made.close()
    made.close()


def test_a_changed_file_is_refused_before_it_is_opened(version: tuple[Path, Manifest]) -> None:
    directory, manifest = version
    data = bytearray((directory / "decoder.onnx.data").read_bytes())
    data[100] ^= 1
    (directory / "decoder.onnx.data").write_bytes(data)
    with pytest.raises(ManifestError, match=r"decoder\.onnx\.data: sha256 differs"):
        create_executor(ServingConfig(), manifest, directory, device_kind="CPU", device_id=0)


def test_a_precision_that_is_not_there_names_those_that_are(version: tuple[Path, Manifest]) -> None:
    directory, manifest = version
    config = ServingConfig(precision="int8")
    with pytest.raises(ManifestError, match=r"precision 'int8' is not in this version \(present: f32\)"):
        create_executor(config, manifest, directory, device_kind="CPU", device_id=0)


def test_a_file_missing_from_the_manifest_is_refused(version: tuple[Path, Manifest]) -> None:
    directory, manifest = version
    bare = dataclasses.replace(manifest, files={"decoder.onnx": manifest.files["decoder.onnx"]})
    with pytest.raises(ManifestError, match=r"decoder\.onnx\.data: not in the manifest"):
        create_executor(ServingConfig(), bare, directory, device_kind="CPU", device_id=0)


@pytest.mark.parametrize(
    ("asked", "compute_precision", "kv_cache_precision"),
    [
        ({}, "f32", "f32"),
        ({"kv_cache_precision": "u8"}, "f32", "u8"),
        ({"compute_precision": "int8"}, "int8", "u8"),
        ({"compute_precision": "int8", "kv_cache_precision": "f32"}, "int8", "f32"),
    ],
)
def test_inexact_precisions_are_only_taken_when_asked_for(
    version: tuple[Path, Manifest], asked: dict[str, str], compute_precision: str, kv_cache_precision: str
) -> None:
    directory, manifest = version
    config = ServingConfig(kv_cache_bytes=1 << 20, **asked)
    made, _ = create_executor(config, manifest, directory, device_kind="CPU", device_id=0)
    facts = made.describe()
    made.close()
    assert (facts["compute_precision"], facts["kv_cache_precision"]) == (compute_precision, kv_cache_precision)
