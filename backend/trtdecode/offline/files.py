"""The two files of a batch: requests in, one JSON line each; results out, appended as they finish.

The output is the only state. A run that was cut off is taken up again: what has a result is not computed twice, and a
half-written last line or a failure of ours (status 5xx) is dropped and done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from trtdecode.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of the input."""

    number: int  # line number, from 1
    custom_id: str
    method: str
    url: str
    body: Any  # validated later: a bad body fails its line, not the batch


def read_requests(path: Path) -> Iterator[BatchLine]:
    """The input's requests in order; blank lines are skipped.

    Raises:
        ConfigError: naming the line that is not JSON, has no custom_id, or repeats one: nothing about such a file can
            be trusted to mean what its author thinks.
    """
    seen: dict[str, int] = {}
    try:
        file = path.open(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    with file:
        for number, text in enumerate(_lines(file, path), 1):
            if not text.strip():
                continue
            line = _parse(path, number, text)
            first = seen.setdefault(line.custom_id, number)
            if first != number:
                raise ConfigError(
                    f"{path}:{number}: custom_id {line.custom_id!r} is also on line {first}; make it unique"
                )
            yield line


def _lines(file: Any, path: Path) -> Iterator[str]:
    try:
        yield from file
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start} of a block); save it as UTF-8") from error


def _parse(path: Path, number: int, text: str) -> BatchLine:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}:{number}: not JSON ({error})") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}:{number}: must be an object with custom_id, method, url and body")
    custom_id = raw.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise ConfigError(f"{path}:{number}: custom_id: got {custom_id!r}; must be a non-empty string")
    return BatchLine(number, custom_id, str(raw.get("method", "POST")), str(raw.get("url", "")), raw.get("body"))


class ResultFile:
    """Appends results. Open it with `with`; each line is handed to the kernel at once, so a kill loses at most one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = self._take_up()
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def append(self, result: dict[str, Any]) -> None:
        """Writes one result."""
        self._file.write(json.dumps(result, ensure_ascii=False) + "\n")
        self._file.flush()

    def _take_up(self) -> set[str]:
        """Ids that have a final result; leaves only their lines in the file."""
        if not self.path.exists():
            return set()
        kept, done, dropped = [], set(), 0
        for number, line in enumerate(self.path.read_bytes().splitlines(keepends=True), 1):
            result = _finished(line, self.path, number)
            if result is None:
                dropped += 1
            else:
                kept.append(line)
                done.add(result)
        if dropped:
            partial = self.path.with_name(self.path.name + ".partial")
            partial.write_bytes(b"".join(kept))
            partial.replace(self.path)
        return done


def _finished(line: bytes, path: Path, number: int) -> str | None:
    """The id of a complete result that another run would not change, else None.

    Raises:
        ConfigError: the line is complete but no result: this is some other file, and must not be written to.
    """
    if not line.endswith(b"\n"):
        return None
    try:
        raw = json.loads(line)
        status = raw["response"]["status_code"]
        custom_id = raw["custom_id"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path}:{number}: not a batch result; choose another output file") from None
    return None if status >= 500 else str(custom_id)
