"""How byte-level BPE vocabularies cut text before merging, by GGUF's `tokenizer.ggml.pre`.

Source: the regular expressions of llama.cpp `src/llama-vocab.cpp`, in Hugging Face `tokenizers` terms. A vocabulary
read with another split gives other ids and a worse model in silence, so an unknown kind is an error.
"""

from __future__ import annotations

from typing import Any

#: GPT-2's own split is built into the ByteLevel pre-tokenizer.
_GPT2: tuple[str, ...] = ()

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s|\p{{N}}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = _CASED_WORDS % ("", "", "")
_GPT4O = _CASED_WORDS % (f"{_CONTRACTIONS}?", f"{_CONTRACTIONS}?", "{1,3}")

_DIGITS = "digits"  # each digit alone, then GPT-2's split

#: kind -> a regular expression, "digits", or () for GPT-2's own.
BYTE_LEVEL_SPLITS: dict[str, str | tuple[str, ...]] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "olmo": _GPT2,
    "phi-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "codeshell": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "stablelm2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
    "gpt-4o": _GPT4O,
}


def byte_level_pre_tokenizer(kind: str) -> dict[str, Any]:
    """The tokenizer.json form of one kind. Raises KeyError for a kind not in BYTE_LEVEL_SPLITS."""
    split = BYTE_LEVEL_SPLITS[kind]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    if split == _GPT2:
        return byte_level
    if split == _DIGITS:
        # Digits first: "a   5" then keeps its spaces together, as in training, instead of joining one to the digit.
        return {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]}
    return {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
            {**byte_level, "use_regex": False},
        ],
    }
