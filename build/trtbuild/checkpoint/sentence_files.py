"""What sentence-transformers' files say of an encoder: pooling, normalisation, longest text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.json_file import read_json

#: Where the config keeps these settings.
SENTENCE_KEY = "sentence_transformers"

_POOLINGS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max"}


def sentence_settings(folder: Path) -> dict[str, Any] | None:
    """`pooling`, `normalize` and `max_seq_length` (where given); None for a folder without modules.json.

    Raises:
        CheckpointError: a module or a pooling that the graph cannot have, or a damaged file.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    settings: dict[str, Any] = {"pooling": "mean", "normalize": False}
    for module in _modules(path):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            settings["pooling"] = _pooling(folder / str(module.get("path", "")) / "config.json")
        elif kind == "Normalize":
            settings["normalize"] = True
        elif kind != "Transformer":
            raise CheckpointError(f"{path}: module {kind!r} cannot be imported; known: Transformer, Pooling, Normalize")
    limits = folder / "sentence_bert_config.json"
    if limits.is_file() and read_json(limits).get("max_seq_length"):
        settings["max_seq_length"] = int(read_json(limits)["max_seq_length"])
    return settings


def _modules(path: Path) -> list[dict[str, Any]]:
    try:
        modules = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path}: not a list of modules; the file is damaged")
    return modules


def _pooling(path: Path) -> str:
    settings = read_json(path)
    chosen = [key for key, value in settings.items() if key.startswith("pooling_mode") and value is True]
    mode = settings.get("pooling_mode")
    if isinstance(mode, str):
        chosen = [f"pooling_mode_{mode}_token" if mode == "cls" else f"pooling_mode_{mode}_tokens"]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise CheckpointError(f"{path}: pooling {chosen} cannot be imported; choose one of {', '.join(_POOLINGS)}")
    return _POOLINGS[chosen[0]]
