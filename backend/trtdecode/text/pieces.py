"""Bytes of single tokens, from the decoder that tokenizer.json names: what an incremental detokenizer needs.

`tokenizers` decodes lists of ids to text; a token alone may be half a character, so text is the wrong unit. Each
decoder used by language models is a function of one token (and of whether it is the first) to bytes, with at most a
strip at the start of the text; that is all there is to streaming them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtdecode.errors import UnsupportedError

#: (token text, whether it is the first of the text) -> token text
TextStep = Callable[[str, bool], str]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class PieceRules:
    """A tokenizer.json decoder, taken apart."""

    steps: tuple[TextStep, ...]
    byte_level: bool = False  # characters stand for bytes, as in GPT-2
    byte_fallback: bool = False  # tokens <0x00> to <0xFF> stand for bytes
    strip_start: bytes = b""  # removed once from the start of the text

    def piece(self, token: str, *, first: bool) -> bytes:
        """The bytes that one token adds to the text."""
        for step in self.steps:
            token = step(token, first)
        if self.byte_level:
            return _byte_level_bytes(token)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes((int(match[1], 16),))
        return token.encode("utf-8")


def piece_rules(decoder: Mapping[str, Any] | None) -> PieceRules:
    """Reads the `decoder` object of a tokenizer.json.

    Raises:
        UnsupportedError: a decoder that cannot be applied token by token.
    """
    if decoder is None:
        return PieceRules(steps=(_joined_by_space,))
    steps: list[TextStep] = []
    flags: dict[str, Any] = {}
    fused = False
    for part in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
        kind = part["type"]
        if kind == "ByteLevel":
            flags["byte_level"] = True
        elif kind == "ByteFallback":
            flags["byte_fallback"] = True
        elif kind == "Fuse":
            fused = True
        elif kind == "Strip" and fused and part["stop"] == 0:
            flags["strip_start"] = part["content"].encode("utf-8") * part["start"]
        elif kind in _STEPS:
            steps.append(_STEPS[kind](part))
        else:
            raise UnsupportedError(
                f"tokenizer.json: decoder {kind!r} cannot stream; known: ByteLevel, ByteFallback, Fuse, Strip at the "
                f"start, {', '.join(_STEPS)}"
            )
    return PieceRules(steps=tuple(steps), **flags)


def _joined_by_space(token: str, first: bool) -> str:
    """No decoder: `tokenizers` joins tokens by spaces."""
    return token if first else f" {token}"


def _replace(part: Mapping[str, Any]) -> TextStep:
    pattern = part["pattern"]
    if "String" not in pattern:
        raise UnsupportedError(f"tokenizer.json: decoder Replace with pattern {pattern!r}; only String is supported")
    old, new = pattern["String"], part["content"]
    return lambda token, _first: token.replace(old, new)


def _metaspace(part: Mapping[str, Any]) -> TextStep:
    mark = part["replacement"]
    keeps_first = part.get("prepend_scheme", "always") == "never"
    return lambda token, first: token.replace(mark, "" if first and not keeps_first else " ")


def _wordpiece(part: Mapping[str, Any]) -> TextStep:
    prefix, clean = part["prefix"], part["cleanup"]

    def step(token: str, first: bool) -> str:
        if not first:
            token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
        if clean:
            for old, new in _CLEANUPS:
                token = token.replace(old, new)
        return token

    return step


#: What `tokenizers` calls cleanup, in its order.
_CLEANUPS = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip

_STEPS: dict[str, Callable[[Mapping[str, Any]], TextStep]] = {
    "Replace": _replace,
    "Metaspace": _metaspace,
    "WordPiece": _wordpiece,
}


@functools.cache
def byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: each byte's character. Printable Latin-1 stands for itself, the others from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


def _byte_level_bytes(token: str) -> bytes:
    """A token with a character outside the alphabet (an added one) stands for its own text."""
    alphabet = byte_of_character()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode("utf-8")
