"""Token ids to text, one token at a time, without ever cutting a character.

The joined deltas equal the decoding of all ids at once, because bytes are what is accumulated: a byte sequence that
may still become a character waits, one that cannot becomes U+FFFD, as in any UTF-8 decoder. A half character that
the end of the output leaves is dropped, in streams and in whole answers alike.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One output's state: the bytes of an unfinished character (at most three), nothing else.

    Args:
        piece: bytes of a token id; the second argument says that it is the first of the whole text.
        strip_start: what the tokenizer's decoder removes from the start of the text (sentencepiece: one space).
        skipped_ids: tokens that leave no text (special tokens).
        at_text_start: no text comes before this output: every prompt token is special.
    """

    def __init__(
        self,
        piece: Callable[[int, bool], bytes],
        *,
        strip_start: bytes = b"",
        skipped_ids: frozenset[int] = frozenset(),
        at_text_start: bool = False,
    ) -> None:
        self._piece = piece
        self._strip = strip_start if at_text_start else b""
        self._skipped_ids = skipped_ids
        self._first = at_text_start
        self._decoder = _Utf8Decoder("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; may be empty."""
        if token_id in self._skipped_ids:
            return ""
        piece = self._piece(token_id, self._first)
        self._first = False
        if self._strip:
            piece = self._strip_from(piece)
        return self._decoder.decode(piece)

    def _strip_from(self, piece: bytes) -> bytes:
        """Removes what is left to strip, as far as the text goes on with it."""
        matched = 0
        while matched < min(len(piece), len(self._strip)) and piece[matched] == self._strip[matched]:
            matched += 1
        self._strip = self._strip[matched:] if matched == len(piece) else b""
        return piece[matched:]
