"""One value as a client sends it -> the Python value, or an InvalidRequest that names the field.

Numbers may arrive as strings of digits ("0.1", "100"), as in the sample client of Triton's vLLM backend; true and
false, NaN and Infinity are never numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from trtdecode.errors import InvalidRequest

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)


def number(name: str, value: Any) -> float:
    """A finite float."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(name, value, "must be a number")
    try:
        x = float(value)
    except OverflowError:  # an int beyond float's range
        x = math.inf
    if not math.isfinite(x):
        raise InvalidRequest(name, value, "must be a finite number")
    return x


def integer(name: str, value: Any) -> int:
    """An int; 10.0 is one, because some languages write JSON with one number type."""
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(name, value, "must be an integer")
    return value


def boolean(name: str, value: Any) -> bool:
    """True or false, also as those words."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise InvalidRequest(name, value, "must be true or false")


def json_of(name: str, text: str) -> Any:
    """The value of JSON text; Python's extensions NaN and Infinity are refused."""

    def refuse(token: str) -> Any:
        raise ValueError(f"{token} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(name, text, f"must be JSON ({error})") from None


def integer_in(low: int, high: int, phrase: str = "") -> Callable[[str, Any], int]:
    """Parser of an int in [low, high]; `phrase` replaces the text of the limit."""
    limit = phrase or f"must be in [{low}, {high}]"

    def parse(name: str, value: Any) -> int:
        number = integer(name, value)
        if not low <= number <= high:
            raise InvalidRequest(name, value, limit)
        return number

    return parse


def number_in(low: float, high: float) -> Callable[[str, Any], float]:
    """Parser of a number in [low, high]."""

    def parse(name: str, value: Any) -> float:
        x = number(name, value)
        if not low <= x <= high:
            raise InvalidRequest(name, value, f"must be in [{low:g}, {high:g}]")
        return x

    return parse


def strings(max_count: int, max_characters: int) -> Callable[[str, Any], tuple[str, ...]]:
    """Parser of one string or a list of non-empty strings."""

    def parse(name: str, value: Any) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise InvalidRequest(name, value, "must be a string or a list of strings")
        if len(items) > max_count:
            raise InvalidRequest(name, f"{len(items)} strings", f"must be at most {max_count} strings")
        for item in items:
            if not isinstance(item, str):
                raise InvalidRequest(name, item, "must be a string")
            if not item:
                raise InvalidRequest(name, item, "must not be empty: an empty string matches everywhere")
            if len(item) > max_characters:
                raise InvalidRequest(name, item, f"must be at most {max_characters} characters, not {len(item)}")
        return tuple(items)

    return parse
