"""The smallest real tokenizer: one token a byte, in GPT-2's byte alphabet, no merges."""

from __future__ import annotations

from typing import Any


def byte_tokenizer() -> dict[str, Any]:
    """The content of a tokenizer.json."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {character: index for index, character in enumerate(alphabet)},
            "merges": [],
        },
    }
