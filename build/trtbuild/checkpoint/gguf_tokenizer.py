"""GGUF's vocabulary -> tokenizer.json and tokenizer_config.json.

Two kinds are known: `gpt2` (byte-level BPE with a named pre-tokenizer) and `llama` (SentencePiece BPE with byte
fallback, whose merges follow from the scores).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.pre_tokenizers import BYTE_LEVEL_SPLITS, byte_level_pre_tokenizer

Json = dict[str, Any]

#: tokenizer.ggml.token_type
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4

#: SentencePiece's stand-in for a space.
METASPACE = "\u2581"


@dataclass(frozen=True)
class Vocabulary:
    """The `tokenizer.ggml.*` keys of one file."""

    path: Path
    metadata: Json

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    @property
    def tokens(self) -> list[str]:
        tokens: list[str] = self.get("tokens")
        return tokens

    def token(self, role: str) -> str | None:
        """The text of a role's token ("bos", "eos", "unknown", "padding"), or None."""
        index = self.get(f"{role}_token_id")
        if index is None:
            return None
        if not 0 <= index < len(self.tokens):
            raise CheckpointError(
                f"{self.path}: tokenizer.ggml.{role}_token_id is {index}, but there are {len(self.tokens)} tokens"
            )
        token: str = self.tokens[index]
        return token


def tokenizer_files(path: Path, metadata: Json) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json; empty where the file carries no vocabulary.

    Raises:
        CheckpointError: a tokenizer or pre-tokenizer kind that is not known, naming those that are.
    """
    vocabulary = Vocabulary(path, metadata)
    kind = vocabulary.get("model")
    if kind is None or not vocabulary.get("tokens"):
        return {}
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level(vocabulary), False
    elif kind == "llama":
        tokenizer, adds_bos = _sentencepiece(vocabulary), True
    else:
        raise CheckpointError(f"{path}: tokenizer kind {kind!r} is not known; known in GGUF: gpt2, llama")
    adds_bos = vocabulary.get("add_bos_token", adds_bos)
    tokenizer["post_processor"] = _template(vocabulary, adds_bos, vocabulary.get("add_eos_token", False))
    config = _tokenizer_config(vocabulary, adds_bos)
    return {"tokenizer.json": _dump(tokenizer), "tokenizer_config.json": _dump(config)}


def _dump(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8")


def _base(vocabulary: Vocabulary, model: Json) -> Json:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": model,
    }


def _bpe(vocabulary: Vocabulary, merges: list[list[str]], **options: Any) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": {token: index for index, token in enumerate(vocabulary.tokens)},
        "merges": merges,
    }


def _byte_level(vocabulary: Vocabulary) -> Json:
    kind = vocabulary.get("pre", "default")
    if kind not in BYTE_LEVEL_SPLITS:
        raise CheckpointError(
            f"{vocabulary.path}: pre-tokenizer {kind!r} is not known; known: {', '.join(sorted(BYTE_LEVEL_SPLITS))}. "
            "Import from a Hugging Face folder with a tokenizer.json instead"
        )
    merges = [merge.split(" ") for merge in vocabulary.get("merges", [])]
    # Llama 3's vocabulary holds words that its merges cannot reach.
    tokenizer = _base(vocabulary, _bpe(vocabulary, merges, ignore_merges=kind == "llama-bpe"))
    tokenizer["pre_tokenizer"] = byte_level_pre_tokenizer(kind)
    tokenizer["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return tokenizer


def _sentencepiece(vocabulary: Vocabulary) -> Json:
    merges = [merge.split(" ") for merge in vocabulary.get("merges", [])] or _merges_from_scores(vocabulary)
    unknown = vocabulary.token("unknown")
    tokenizer = _base(vocabulary, _bpe(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces: Json = {"type": "Replace", "pattern": {"String": " "}, "content": METASPACE}
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": METASPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    normalizers = [spaces]
    if vocabulary.get("add_space_prefix", True):
        normalizers.insert(0, {"type": "Prepend", "prepend": METASPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
    tokenizer["decoder"] = {"type": "Sequence", "decoders": decoders}
    return tokenizer


def _merges_from_scores(vocabulary: Vocabulary) -> list[list[str]]:
    """Every way to cut a token into two tokens, best score first: SentencePiece merges by the score of the result.

    Gemma's scores do not follow the order of its merges, the order of its tokens does (as transformers reads it).
    """
    by_order = str(vocabulary.metadata.get("general.architecture", "")).startswith("gemma")
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    scores: list[float] = vocabulary.get("scores") or [0.0] * len(ids)
    ranked = []
    for token, index in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((0.0 if by_order else -scores[index], index, left, right))
    ranked.sort()
    tokens = vocabulary.tokens
    return [[tokens[left], tokens[right]] for _, _, left, right in ranked]


def _added_tokens(vocabulary: Vocabulary) -> list[Json]:
    kinds: list[int] = vocabulary.get("token_type") or []
    return [
        {
            "id": index,
            "content": vocabulary.tokens[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != USER_DEFINED,
        }
        for index, kind in enumerate(kinds)
        if kind in (CONTROL, USER_DEFINED) or (kind == UNKNOWN and vocabulary.get("model") == "llama")
    ]


def _template(vocabulary: Vocabulary, adds_bos: bool, adds_eos: bool) -> Json | None:
    before = [vocabulary.token("bos")] if adds_bos else []
    after = [vocabulary.token("eos")] if adds_eos else []
    names = [name for name in before + after if name is not None]
    if not names:
        return None
    special = {name: {"id": name, "ids": [vocabulary.tokens.index(name)], "tokens": [name]} for name in names}

    def pieces(sequence: str, type_id: int) -> list[Json]:
        around: list[list[Json]] = [
            [{"SpecialToken": {"id": name, "type_id": type_id}} for name in part if name is not None]
            for part in (before, after)
        ]
        return [*around[0], {"Sequence": {"id": sequence, "type_id": type_id}}, *around[1]]

    return {
        "type": "TemplateProcessing",
        "single": pieces("A", 0),
        "pair": pieces("A", 0) + pieces("B", 1),
        "special_tokens": special,
    }


def _tokenizer_config(vocabulary: Vocabulary, adds_bos: bool) -> Json:
    config: Json = {
        "add_bos_token": adds_bos,
        "add_eos_token": vocabulary.get("add_eos_token", False),
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for role, name in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        token = vocabulary.token(role)
        if token is not None:
            config[f"{name}_token"] = token
    template = vocabulary.metadata.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config
