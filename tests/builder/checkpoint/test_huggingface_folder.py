"""Hugging Face folders: one file, shards, tokenizer files, and every way in which a folder can be wrong."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import transformers
from builder.tiny_models import LLAMA_SIZES, save_model
from trtbuild.checkpoint import load, open_checkpoint
from trtdecode.errors import CheckpointError

TINY = {**LLAMA_SIZES, "hidden_size": 24, "intermediate_size": 32}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(transformers.LlamaConfig(**TINY), tmp_path)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_model(transformers.LlamaConfig(**TINY), tmp_path, max_shard_size="16KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path


def rewrite(folder: Path, **tensors: np.ndarray) -> None:
    """Replaces tensors of model.safetensors."""
    present = safetensors.numpy.load_file(folder / "model.safetensors")
    safetensors.numpy.save_file({**present, **tensors}, folder / "model.safetensors")


def test_weights_of_one_file_and_of_shards_are_equal(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**TINY)
    model = save_model(config, tmp_path / "one")
    save_model(config, tmp_path / "many", max_shard_size="16KB")
    one, many = (open_checkpoint(tmp_path / name).weights for name in ("one", "many"))
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(load(one, name), value.numpy(), err_msg=name)
        np.testing.assert_array_equal(load(many, name), value.numpy(), err_msg=name)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_float_types(folder: Path, dtype: Any) -> None:
    values = np.linspace(-2, 2, 24).astype(dtype)
    rewrite(folder, **{"model.norm.weight": values})
    np.testing.assert_array_equal(load(open_checkpoint(folder).weights, "model.norm.weight"), values.astype(np.float32))


def test_generation_config_overrides_the_end_ids(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 9]}))
    assert open_checkpoint(folder).config["eos_token_id"] == [3, 9]


def test_chat_template_file_is_put_into_the_tokenizer_config(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    files = open_checkpoint(folder).tokenizer
    assert json.loads(files["tokenizer_config.json"]) == {"bos_token": "<s>", "chat_template": "{{ messages }}"}
    assert files["tokenizer.json"] == b"{}"


# -- wrong folders --------------------------------------------------------------------------------------------------


def test_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name}: shard listed in .* is missing"):
        open_checkpoint(sharded)


def test_truncated_shard_names_file_and_tensor(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=rf"{shard.name}: tensor '.*' ends at byte .* truncated"):
        open_checkpoint(sharded)


def test_shard_without_a_promised_tensor(sharded: Path) -> None:
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.extra.weight"] = sorted(set(index["weight_map"].values()))[0]
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"tensor 'model\.extra\.weight', promised by .*index\.json, is missing"):
        open_checkpoint(sharded)


def test_index_must_not_leave_the_folder(sharded: Path) -> None:
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = "../other.safetensors"
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"'\.\./other\.safetensors' is not a plain file name"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("length", [0, 5, 8, 40])
def test_cut_header(folder: Path, length: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_checkpoint(folder)


def test_header_that_is_not_json(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((5).to_bytes(8, "little") + b"hello" + bytes(100))
    with pytest.raises(CheckpointError, match="header is not JSON"):
        open_checkpoint(folder)


def test_unsupported_type_names_file_tensor_and_type(folder: Path) -> None:
    rewrite(folder, **{"model.norm.weight": np.zeros(24, np.int8)})
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor 'model\.norm\.weight' has type I8"):
        load(open_checkpoint(folder).weights, "model.norm.weight")


def test_missing_tensor(folder: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"tensor 'model\.norm\.wait' is missing \(closest present: model\.norm\.weight"
    ):
        load(open_checkpoint(folder).weights, "model.norm.wait")


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('unpickled')",))


def test_pickled_weights_are_refused_unopened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(CheckpointError, match=r"only pickled weights \(pytorch_model\.bin\).*safe_serialization"):
        open_checkpoint(folder)


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: missing"):
        open_checkpoint(tmp_path)


def test_config_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        open_checkpoint(folder)


def test_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: not readable as JSON"):
        open_checkpoint(folder)
