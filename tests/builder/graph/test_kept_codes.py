"""Checkpoints that are quantised already keep their codes: every precision computes with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
import transformers
from builder.gguf_writer import llama_metadata, llama_tensors, write_gguf
from builder.gptq_writer import gptq_folder
from builder.tiny_models import LLAMA_SIZES, make_model, random_prompt
from conformance.driver import Driver
from trtbuild.checkpoint import Checkpoint, open_checkpoint
from trtbuild.graph.author import author_graph
from trtdecode.errors import UnsupportedError
from trtdecode.executor.openvino_executor import OpenVinoExecutor
from trtdecode.executor.torch_executor import TorchExecutor

PROMPT = random_prompt(21, LLAMA_SIZES["vocab_size"])


def gguf_file(folder: Path, quant: gguf.GGMLQuantizationType) -> Path:
    model = make_model(transformers.LlamaConfig(**LLAMA_SIZES))
    folder.mkdir()
    return write_gguf(folder / "m.gguf", llama_metadata(model.config), llama_tensors(model), quant=quant)


SOURCES: dict[str, Callable[[Path], Path]] = {
    "gptq-symmetric": lambda folder: gptq_folder(folder, symmetric=True, act_order=False),
    "gptq-asymmetric": lambda folder: gptq_folder(folder, symmetric=False, act_order=False),
    "gptq-act-order": lambda folder: gptq_folder(folder, symmetric=False, act_order=True),
    "gguf-q4_0": lambda folder: gguf_file(folder, gguf.GGMLQuantizationType.Q4_0),
    "gguf-q4_1": lambda folder: gguf_file(folder, gguf.GGMLQuantizationType.Q4_1),
    "gguf-q8_0": lambda folder: gguf_file(folder, gguf.GGMLQuantizationType.Q8_0),
}


def logits(kind: Any, path: Path) -> np.ndarray:
    executor = kind(path, kv_cache_bytes=1 << 20)
    driver = Driver(executor)
    rows = driver.prefill(driver.sequence(PROMPT))
    executor.close()
    return rows


@pytest.fixture(scope="module", params=SOURCES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(SOURCES[request.param](tmp_path_factory.mktemp(request.param) / "source"))


def test_all_precisions_and_executors_agree(checkpoint: Checkpoint, tmp_path: Path) -> None:
    author_graph(checkpoint, tmp_path / "f32.onnx", "f32")
    wanted = logits(TorchExecutor, tmp_path / "f32.onnx")
    for precision in ["int8"] if _is_q8(checkpoint) else ["int8", "int4"]:
        path = tmp_path / f"{precision}.onnx"
        author_graph(checkpoint, path, precision)
        ours = logits(TorchExecutor, path)
        np.testing.assert_allclose(logits(OpenVinoExecutor, path), ours, atol=1e-4)
        # Embedding and head of a GPTQ checkpoint are floats: their 8-bit codes are near, not equal.
        np.testing.assert_allclose(ours, wanted, atol=1e-4 if checkpoint.source.endswith(".gguf") else 0.2)


def _is_q8(checkpoint: Checkpoint) -> bool:
    codes = checkpoint.weights.codes("model.layers.0.mlp.down_proj.weight")
    return codes is not None and codes.bits == 8


def test_four_bit_codes_are_packed(checkpoint: Checkpoint, tmp_path: Path) -> None:
    if _is_q8(checkpoint):
        with pytest.raises(UnsupportedError, match="stores no matrix in 4-bit codes"):
            author_graph(checkpoint, tmp_path / "decoder.onnx", "int4")
        return
    author_graph(checkpoint, tmp_path / "decoder.onnx", "int4")
    graph = onnx.load(str(tmp_path / "decoder.onnx"), load_external_data=False).graph
    kinds = {init.name: init.data_type for init in graph.initializer}
    four_bit = {onnx.TensorProto.INT4, onnx.TensorProto.UINT4}
    assert kinds["model.layers.1.self_attn.qkv_proj.weight"] in four_bit
    assert kinds["model.layers.1.mlp.gate_up_proj.weight"] in four_bit
    assert kinds["model.embed_tokens.weight"] in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)


def test_mixed_types_stay_apart(tmp_path: Path) -> None:
    """K-quant files give V another type than Q and K: the three are then multiplied one by one, each exactly."""
    model = make_model(transformers.LlamaConfig(**LLAMA_SIZES))
    tensors = llama_tensors(model)
    path = write_gguf(
        tmp_path / "m.gguf",
        llama_metadata(model.config),
        tensors,
        quant=gguf.GGMLQuantizationType.Q4_0,
        exceptions={"attn_v.weight": gguf.GGMLQuantizationType.Q5_1, "ffn_up.weight": gguf.GGMLQuantizationType.Q8_0},
    )
    checkpoint = open_checkpoint(path)
    rows = {}
    for precision in ("f32", "int8", "int4"):
        author_graph(checkpoint, tmp_path / f"{precision}.onnx", precision)
        rows[precision] = logits(TorchExecutor, tmp_path / f"{precision}.onnx")
        np.testing.assert_allclose(logits(OpenVinoExecutor, tmp_path / f"{precision}.onnx"), rows[precision], atol=1e-4)
        np.testing.assert_allclose(rows[precision], rows["f32"], atol=1e-4)
    names = [node.op_type for node in onnx.load(str(tmp_path / "int4.onnx"), load_external_data=False).graph.node]
    assert names.count("Concat") == 2 * 2


def test_gguf_codes_are_the_stored_ones(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(gguf_file(tmp_path / "g", gguf.GGMLQuantizationType.Q4_0))
    for name in ("model.layers.0.self_attn.k_proj.weight", "model.embed_tokens.weight"):
        codes = checkpoint.weights.codes(name)
        assert codes is not None
        assert codes.codes.min() >= -8
        np.testing.assert_array_equal(codes.dequantize(), np.concatenate(list(checkpoint.weights.rows(name))))
