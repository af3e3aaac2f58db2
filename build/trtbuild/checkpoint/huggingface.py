"""Opens a Hugging Face folder: config.json, safetensors (one file, or shards with an index), tokenizer files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt
from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.base import Checkpoint, Float32, Weights, missing_tensor
from trtbuild.checkpoint.grouped_codes import GroupedCodes
from trtbuild.checkpoint.json_file import read_json
from trtbuild.checkpoint.quantized import QuantizedWeights
from trtbuild.checkpoint.safetensors_file import SafetensorsFile
from trtbuild.checkpoint.schemes import scheme_of
from trtbuild.checkpoint.sentence_files import SENTENCE_KEY, sentence_settings

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

#: Copied into the model version when present; a chat template of its own file goes into tokenizer_config.json.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
CHAT_TEMPLATE_FILE = "chat_template.jinja"

#: Formats that execute code when loaded, or may.
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class SafetensorsWeights:
    """All tensors of a folder's safetensors files."""

    def __init__(self, folder: Path, files: dict[str, SafetensorsFile]) -> None:
        self._folder = folder
        self._files = files  # tensor name -> its file

    def names(self) -> list[str]:
        return list(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file(name).entries[name].shape

    def rows(self, name: str) -> Iterator[Float32]:
        return self._file(name).rows(name)

    def codes(self, name: str) -> GroupedCodes | None:
        return None

    def common_bits(self) -> int | None:
        return None

    def raw(self, name: str) -> npt.NDArray[Any]:
        """A whole tensor in its own dtype."""
        return self._file(name).raw(name)

    def _file(self, name: str) -> SafetensorsFile:
        try:
            return self._files[name]
        except KeyError:
            raise missing_tensor(name, self.names(), self._folder) from None


def open_folder(folder: Path) -> Checkpoint:
    """Opens a Hugging Face folder.

    Raises:
        CheckpointError: config.json or weights missing, a shard missing or truncated, or only pickled weights.
    """
    config = read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    if generation.is_file():
        # The ids that end a chat turn are often only here.
        for key in ("eos_token_id", "bos_token_id"):
            value = read_json(generation).get(key)
            if value is not None:
                config[key] = value
    sentence = sentence_settings(folder)
    if sentence is not None:
        config[SENTENCE_KEY] = sentence
    return Checkpoint(str(folder), config, _open_weights(folder, config), tokenizer_files(folder))


def _open_weights(folder: Path, config: dict[str, Any]) -> Weights:
    stored = SafetensorsWeights(folder, _open_files(folder))
    scheme = scheme_of(config, stored, folder)
    return stored if scheme is None else QuantizedWeights(stored, scheme, folder)


def _open_files(folder: Path) -> dict[str, SafetensorsFile]:
    index_path = folder / INDEX_FILE
    if index_path.is_file():
        return _open_shards(folder, read_json(index_path).get("weight_map"), index_path)
    paths = [folder / SINGLE_FILE] if (folder / SINGLE_FILE).is_file() else sorted(folder.glob("*.safetensors"))
    if len(paths) != 1:
        raise _no_weights(folder, paths)
    file = SafetensorsFile(paths[0])
    return dict.fromkeys(file.entries, file)


def _open_shards(folder: Path, weight_map: Any, index_path: Path) -> dict[str, SafetensorsFile]:
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index_path}: has no weight_map; the index is damaged, get it again")
    shards: dict[str, SafetensorsFile] = {}
    for shard in sorted(set(weight_map.values())):
        path = folder / shard
        if Path(shard).name != shard:
            raise CheckpointError(f"{index_path}: shard {shard!r} is not a plain file name; refusing to follow it")
        if not path.is_file():
            raise CheckpointError(f"{path}: shard listed in {INDEX_FILE} is missing; get it and import again")
        shards[shard] = SafetensorsFile(path)
    for name, shard in weight_map.items():
        if name not in shards[shard].entries:
            raise CheckpointError(f"{folder / shard}: tensor {name!r}, promised by {INDEX_FILE}, is missing")
    return {name: shards[shard] for name, shard in weight_map.items()}


def _no_weights(folder: Path, paths: list[Path]) -> CheckpointError:
    if paths:
        names = ", ".join(path.name for path in paths)
        return CheckpointError(f"{folder}: several safetensors files ({names}) without {INDEX_FILE}; get the index")
    pickled = [path.name for pattern in PICKLE_PATTERNS for path in sorted(folder.glob(pattern))]
    if pickled:
        return CheckpointError(
            f"{folder}: only pickled weights ({', '.join(pickled[:3])}); unpickling runs code, so trtdecode never "
            "does it: convert them with transformers, save_pretrained(..., safe_serialization=True)"
        )
    return CheckpointError(f"{folder}: no {SINGLE_FILE} or {INDEX_FILE}; this is not a complete checkpoint")


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json of a folder, as far as they are there."""
    files = {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}
    template = folder / CHAT_TEMPLATE_FILE
    if template.is_file():
        config = json.loads(files.get("tokenizer_config.json", b"{}"))
        config["chat_template"] = template.read_text("utf-8")
        files["tokenizer_config.json"] = json.dumps(config, ensure_ascii=False, indent=1).encode()
    return files
