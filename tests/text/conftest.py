"""Small tokenizers with known pieces, so that a test can say which token cuts which character."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from trtdecode.text.pieces import byte_of_character
from trtdecode.text.tokenizer import Tokenizer


def byte_level_text(data: bytes) -> str:
    """Bytes in GPT-2's alphabet."""
    characters = {byte: character for character, byte in byte_of_character().items()}
    return "".join(characters[byte] for byte in data)


def added(token_id: int, content: str, *, special: bool = True, **flags: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False} | flags
    return {"id": token_id, "content": content, "special": special, **flags}


def byte_level_tokenizer(pieces: Sequence[str], specials: Sequence[str] = (), **config: Any) -> Tokenizer:
    """Ids: the specials, then the 256 bytes in order, then the pieces (decoded by id; encoding merges nothing)."""
    vocab = {content: index for index, content in enumerate(specials)}
    for byte in range(256):
        vocab[byte_level_text(bytes([byte]))] = len(vocab)
    for piece in pieces:
        vocab[byte_level_text(piece.encode())] = len(vocab)
    return Tokenizer(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [added(index, content) for index, content in enumerate(specials)],
                "normalizer": None,
                "pre_tokenizer": {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": True,
                },
                "post_processor": None,
                "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                "model": {"type": "BPE", "vocab": vocab, "merges": []},
            }
        ),
        config,
    )


def sentencepiece_tokenizer(pieces: Sequence[str], decoder: dict[str, Any] | None = None, **config: Any) -> Tokenizer:
    """Ids: <unk>, <s>, </s>, the 256 byte tokens, then the pieces, in a unigram model as T5's and Llama's."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    llama_decoder = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    return Tokenizer(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [added(index, names[index]) for index in range(3)],
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [
                        {"type": "Prepend", "prepend": "▁"},
                        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                    ],
                },
                "pre_tokenizer": None,
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
                },
                "decoder": decoder or llama_decoder,
                "model": {
                    "type": "Unigram",
                    "unk_id": 0,
                    "byte_fallback": True,
                    "vocab": [[name, -float(index > 258)] for index, name in enumerate(names)],
                },
            }
        ),
        {"bos_token": "<s>", "eos_token": "</s>", **config},
    )


def piece_ids(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    """Ids by token text (byte-level: as GPT-2 spells it)."""
    vocab = json.loads(tokenizer.json_text)["model"]["vocab"]
    names = [name for name, _ in vocab] if isinstance(vocab, list) else list(vocab)
    return [names.index(piece) for piece in pieces]


@pytest.fixture(scope="session")
def smollm2_tokenizer_dir(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's tokenizer.json and tokenizer_config.json, as an import writes them."""
    from trtbuild.checkpoint.gguf_checkpoint import open_gguf

    folder = tmp_path_factory.mktemp("smollm2")
    for name, content in open_gguf(smollm2_gguf).tokenizer.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="session")
def smollm2(smollm2_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.from_dir(smollm2_tokenizer_dir)
