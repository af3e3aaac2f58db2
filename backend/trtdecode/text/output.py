"""One request's text as it grows: detokenizer, stop strings and hold-back (`protocols.OutputState`)."""

from __future__ import annotations

from collections.abc import Sequence

from trtdecode.text.detokenizer import Detokenizer
from trtdecode.text.stop_strings import StopStrings


class TextOutput:
    """Releases text that can no longer become part of a stop string.

    Args:
        detokenizer: fresh, for this output.
        stops: compiled stop strings, or None.
        stop_token_ids: EOS (unless ignored) and the request's own; such a token's text is left out.
        min_tokens: no stop may end within the first `min_tokens` tokens.
        include_stop: the stop string, or the stop token's text, is part of the output.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stops: StopStrings | None = None,
        stop_token_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
        include_stop: bool = False,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._stop_token_ids = stop_token_ids
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._num_tokens = 0
        self._held = ""  # the longest end of the text so far that a stop string begins with
        self._stopped = False

    def push(self, token_ids: Sequence[int]) -> tuple[str, bool]:
        """Takes new tokens; returns (text released now, whether a stop string was met). See `protocols`."""
        assert not self._stopped, "a stop string was met; the output is final"
        released = ""
        for token_id in token_ids:
            text = self._take(token_id)
            released += text if self._stops is None else self._release(self._stops, text)
            if self._is_final():
                return released, True
        return released, False

    def flush(self) -> str:
        """The text still held back, when the request ends otherwise. A half character is dropped."""
        held, self._held = self._held, ""
        return held

    def _take(self, token_id: int) -> str:
        self._num_tokens += 1
        is_stop = token_id in self._stop_token_ids and self._num_tokens >= self._min_tokens
        if is_stop and not self._include_stop:
            return ""
        return self._detokenizer.push(token_id)

    def _is_final(self) -> bool:
        return self._stopped

    def _release(self, stops: StopStrings, new_text: str) -> str:
        text = self._held + new_text
        if self._num_tokens >= self._min_tokens:
            match = stops.find(text, len(self._held))
            if match is not None:
                start, end = match
                self._held, self._stopped = "", True
                return text[: end if self._include_stop else start]
        num_held = stops.num_held(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]
