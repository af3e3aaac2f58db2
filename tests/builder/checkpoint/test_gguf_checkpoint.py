"""GGUF: block types, row orders, configs, and every way in which a file can be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import transformers
from builder.gguf_writer import llama_metadata, llama_tensors, permute_rows, write_gguf
from builder.tiny_models import LLAMA_SIZES, make_model
from trtbuild.checkpoint import base, load, open_checkpoint
from trtbuild.checkpoint.gguf_file import GgufFile
from trtbuild.checkpoint.gguf_layout import unpermute_rows
from trtdecode.errors import CheckpointError

Quant = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model(transformers.LlamaConfig(**LLAMA_SIZES))


@pytest.fixture
def gguf_path(model: Any, tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", llama_metadata(model.config), llama_tensors(model))


def test_every_weight_comes_back_in_hugging_face_order(model: Any, gguf_path: Path) -> None:
    weights = open_checkpoint(gguf_path).weights
    for name, value in model.state_dict().items():
        assert weights.shape(name) == tuple(value.shape)
        np.testing.assert_array_equal(load(weights, name), value.numpy(), err_msg=name)


def test_config_is_hugging_faces(model: Any, gguf_path: Path) -> None:
    config = open_checkpoint(gguf_path).config
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"] is False
    same = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    assert [config[key] for key in same] == [getattr(model.config, key) for key in same]
    assert config["num_key_value_heads"] == 2


def test_k_rows_are_restored_with_the_kv_head_count() -> None:
    """Case C40: 6 query heads, 2 KV heads of 8. The ratio or the query heads would garble K."""
    rows = np.arange(16, dtype=np.float32)[:, None] * np.ones((1, 4), np.float32)
    stored = permute_rows(rows, 2)
    assert stored[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    np.testing.assert_array_equal(unpermute_rows(stored, 2), rows)
    assert not np.array_equal(unpermute_rows(stored, 4), rows)


@pytest.mark.parametrize("quant", [Quant.Q8_0, Quant.Q4_0, Quant.Q4_1, Quant.Q5_0, Quant.Q5_1, Quant.BF16, Quant.F16])
def test_block_types_equal_the_gguf_package(tmp_path: Path, quant: gguf.GGMLQuantizationType) -> None:
    matrix = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)
    path = write_gguf(tmp_path / "blocks.gguf", {}, {"m": matrix}, quant=quant)
    wanted = gguf.dequantize(gguf.quantize(matrix, quant), quant)
    np.testing.assert_array_equal(np.concatenate(list(GgufFile(path).rows("m"))), wanted)


def write_raw(path: Path, quant: gguf.GGMLQuantizationType, raw: np.ndarray) -> GgufFile:
    """A file with one matrix of given blocks: the package cannot write k-quants, but any finite scales are valid."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("m", raw, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def random_blocks(quant: gguf.GGMLQuantizationType) -> np.ndarray:
    """Five rows of two blocks: random bytes, with float16 scales (wherever the type has them) of ordinary size."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    random = np.random.default_rng(0)
    raw = random.integers(0, 256, (5, 2, block_bytes), dtype=np.uint8)
    for at in {Quant.Q2_K: (80, 82), Quant.Q3_K: (108,), Quant.Q6_K: (208,), Quant.Q8_0: (0,)}.get(quant, (0, 2)):
        if at == 2 and quant in (Quant.Q4_0, Quant.Q5_0):
            continue
        raw[:, :, at : at + 2] = random.uniform(-0.1, 0.1, (5, 2, 1)).astype(np.float16).view(np.uint8)
    return raw.reshape(5, -1)


@pytest.mark.parametrize("quant", [Quant.Q2_K, Quant.Q3_K, Quant.Q4_K, Quant.Q5_K, Quant.Q6_K])
def test_k_quant_blocks_are_read(tmp_path: Path, quant: gguf.GGMLQuantizationType) -> None:
    raw = random_blocks(quant)
    file = write_raw(tmp_path / "k.gguf", quant, raw)
    assert file.entries["m"].shape == (5, 512)
    np.testing.assert_array_equal(np.concatenate(list(file.rows("m"))), gguf.dequantize(raw, quant))


CODED = [Quant.Q8_0, Quant.Q4_0, Quant.Q4_1, Quant.Q5_0, Quant.Q5_1, Quant.Q4_K, Quant.Q5_K, Quant.Q6_K]


@pytest.mark.parametrize("quant", CODED)
def test_codes_stand_for_the_same_values(tmp_path: Path, quant: gguf.GGMLQuantizationType) -> None:
    raw = random_blocks(quant)
    codes = write_raw(tmp_path / "k.gguf", quant, raw).codes("m")
    assert codes is not None
    assert codes.bits == {"Q8_0": 8, "Q6_K": 6, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5}.get(quant.name, 4)
    assert np.abs(codes.codes.astype(int)).max() < 1 << codes.bits
    assert codes.group_size == (16 if quant == Quant.Q6_K else 32)
    wanted = gguf.dequantize(raw, quant)
    np.testing.assert_allclose(codes.dequantize(), wanted, rtol=0, atol=2e-7 * np.abs(wanted).max())


def test_group_without_a_scale_is_its_minimum(tmp_path: Path) -> None:
    raw = random_blocks(Quant.Q4_1).reshape(5, 2, -1)
    raw[:, 0, 0:2] = 0  # w = 0 * code + minimum
    codes = write_raw(tmp_path / "k.gguf", Quant.Q4_1, raw.reshape(5, -1)).codes("m")
    assert codes is not None
    np.testing.assert_array_equal(codes.dequantize()[:, :32], gguf.dequantize(raw.reshape(5, -1), Quant.Q4_1)[:, :32])


def test_rows_come_in_bounded_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "CHUNK_BYTES", 4 * 64 * 10)
    matrix = np.arange(25 * 64, dtype=np.float32).reshape(25, 64)
    file = GgufFile(write_gguf(tmp_path / "m.gguf", {}, {"m": matrix}))
    pieces = list(file.rows("m"))
    assert [len(piece) for piece in pieces] == [10, 10, 5]
    np.testing.assert_array_equal(np.concatenate(pieces), matrix)


def test_rope_factors_become_a_scaling(model: Any, tmp_path: Path) -> None:
    tensors = {**llama_tensors(model), "rope_freqs.weight": np.array([1, 1, 2, 4, 8, 8, 8, 8], np.float32)}
    path = write_gguf(tmp_path / "tiny.gguf", llama_metadata(model.config), tensors)
    scaling = open_checkpoint(path).config["rope_scaling"]
    assert scaling == {"rope_type": "factors", "factors": [1, 1, 2, 4, 8, 8, 8, 8]}


def test_end_of_turn_also_ends_generation(model: Any, tmp_path: Path) -> None:
    metadata = {**llama_metadata(model.config), "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 7}
    path = write_gguf(tmp_path / "tiny.gguf", metadata, llama_tensors(model))
    assert open_checkpoint(path).config["eos_token_id"] == [2, 7]


# -- wrong files ----------------------------------------------------------------------------------------------------


def test_truncated_file_names_the_tensor(gguf_path: Path) -> None:
    data = gguf_path.read_bytes()
    gguf_path.write_bytes(data[:-64])
    with pytest.raises(
        CheckpointError, match=r"tiny\.gguf: tensor 'blk\.1\.ffn_down\.weight' ends at byte .* truncated"
    ):
        open_checkpoint(gguf_path)


@pytest.mark.parametrize("length", [0, 3, 10, 30, 200, 1500])
def test_any_cut_in_the_header_is_an_error(gguf_path: Path, length: int) -> None:
    gguf_path.write_bytes(gguf_path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"tiny\.gguf"):
        open_checkpoint(gguf_path)


def test_not_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        open_checkpoint(path)


def test_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": np.zeros((4, 4), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", {}, tensors, architecture="mamba")
    with pytest.raises(CheckpointError, match=r"architecture 'mamba' is not known; known in GGUF: .*llama.*qwen2"):
        open_checkpoint(path)


def test_missing_tensor_names_the_closest(model: Any, tmp_path: Path) -> None:
    tensors = llama_tensors(model)
    del tensors["blk.1.ffn_up.weight"]
    path = write_gguf(tmp_path / "m.gguf", llama_metadata(model.config), tensors)
    with pytest.raises(
        CheckpointError, match=r"tensor 'blk\.1\.ffn_up\.weight' is missing \(closest present: blk\.\d\.ffn_up"
    ):
        load(open_checkpoint(path).weights, "model.layers.1.mlp.up_proj.weight")


def test_unknown_block_type_names_tensor_and_type(gguf_path: Path) -> None:
    data = bytearray(gguf_path.read_bytes())
    at = data.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8  # after the dimensions
    data[at : at + 4] = (77).to_bytes(4, "little")
    gguf_path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"tensor 'output_norm\.weight' has block type type 77"):
        load(open_checkpoint(gguf_path).weights, "model.norm.weight")


def test_nan_in_a_weight_names_the_tensor(model: Any, tmp_path: Path) -> None:
    """Case C46: a checkpoint that already holds NaN."""
    tensors = llama_tensors(model)
    tensors["blk.0.ffn_up.weight"] = tensors["blk.0.ffn_up.weight"].copy()
    tensors["blk.0.ffn_up.weight"][3, 5] = np.nan
    path = write_gguf(tmp_path / "m.gguf", llama_metadata(model.config), tensors)
    with pytest.raises(CheckpointError, match=r"tensor 'blk\.0\.ffn_up\.weight' holds NaN"):
        load(open_checkpoint(path).weights, "model.layers.0.mlp.up_proj.weight")


def test_folder_with_several_gguf_files(gguf_path: Path) -> None:
    (gguf_path.parent / "other.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"several GGUF files \(other\.gguf, tiny\.gguf\); name one"):
        open_checkpoint(gguf_path.parent)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "absent")
