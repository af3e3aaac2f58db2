"""Texts and pairs of texts to what an encoder reads: ids with the model's own special tokens, and token types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtdecode.errors import InvalidRequest, ManifestError
from trtdecode.text.tokenizer import TOKENIZER_FILE, checked_text


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """One text (or pair) as the graph reads it."""

    ids: Sequence[int]
    token_types: Sequence[int]  # as long as `ids`

    def __len__(self) -> int:
        return len(self.ids)


class EncoderTokenizer:
    """Thread-safe.

    Args:
        tokenizer_json: text of tokenizer.json.
        max_length: tokens that a truncated input has at most, special ones included.
    """

    def __init__(self, tokenizer_json: str, max_length: int) -> None:
        import tokenizers

        def make() -> Any:
            made = tokenizers.Tokenizer.from_str(tokenizer_json)
            made.no_padding()
            made.no_truncation()
            return made

        try:
            self._whole, self._truncating = make(), make()
        except Exception as error:  # the library raises no narrower type
            raise ManifestError(f"{TOKENIZER_FILE}: not a tokenizer ({error}); import the model again") from error
        # Of a pair the longer text loses tokens first, as in transformers and sentence-transformers.
        self._truncating.enable_truncation(max_length, strategy="longest_first")

    @classmethod
    def from_dir(cls, version_dir: Path, max_length: int) -> EncoderTokenizer | None:
        """The tokenizer of a version folder; None when it has none. Raises ManifestError for one that is not valid."""
        path = version_dir / TOKENIZER_FILE
        if not path.is_file():
            return None
        try:
            return cls(path.read_text("utf-8"), max_length)
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"{path}: not readable ({error}); import the model again") from error

    def encode(self, text: str, pair: str | None = None, *, truncate: bool = False) -> EncoderInput:
        """Ids and token types. Raises InvalidRequest for a text that holds half a surrogate pair, or has no token."""
        texts = [checked_text(text, "text_input")]
        if pair is not None:
            texts.append(checked_text(pair, "text_pair"))
        encoding = (self._truncating if truncate else self._whole).encode(*texts)
        if not encoding.ids:
            raise InvalidRequest("text_input", text, "must hold at least one token: this tokenizer adds none")
        return EncoderInput(encoding.ids, encoding.type_ids)
