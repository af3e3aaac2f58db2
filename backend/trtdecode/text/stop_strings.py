"""Stop strings over streamed text: where the first one ends, and how much text may still become one.

The stop that ends first wins; of those that end together, the longest. That does not depend on how the text is cut
into tokens or chunks. Cost a character: one set look-up, and for thousands of stops a binary search where a stop
could begin, so that the number of stops hardly matters.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence


class StopStrings:
    """A compiled set of stop strings; immutable, so that the samples of one request share it."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string matches everywhere; parse.py refuses it"
        self._sorted = sorted(set(stops))
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._longest = max(map(len, stops), default=0)
        by_last: dict[str, list[str]] = defaultdict(list)
        for stop in sorted(self._sorted, key=len, reverse=True):
            by_last[stop[-1]].append(stop)
        self._by_last_character = dict(by_last)

    def find(self, text: str, begin: int) -> tuple[int, int] | None:
        """(start, end) of the first stop in `text` that ends after `begin`, or None."""
        for end in range(begin + 1, len(text) + 1):
            for stop in self._by_last_character.get(text[end - 1], ()):
                if text.endswith(stop, 0, end):
                    return end - len(stop), end
        return None

    def num_held(self, text: str) -> int:
        """Length of the longest end of `text` that a stop begins with; 0 when all of it can be released."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first_characters:
                tail = text[start:]
                index = bisect.bisect_left(self._sorted, tail)
                if index < len(self._sorted) and self._sorted[index].startswith(tail):
                    return len(tail)
        return 0
