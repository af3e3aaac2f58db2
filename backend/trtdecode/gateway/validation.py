"""What pydantic says of a wrong body, as one field and one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: How pydantic names the alternatives of a union in the path to a field.
_ALTERNATIVES = frozenset({"str", "int", "float", "bool", "NamedTool"})


def wrong_field(errors: Sequence[Mapping[str, Any]], num_outer: int = 0) -> tuple[str, str]:
    """(the field's path, joined with dots; "" for the body itself, and what is wrong with it).

    Args:
        errors: pydantic's.
        num_outer: parts in front of each path that are not the body's.
    """
    paths = [_path(error, num_outer) for error in errors]
    # A union reports each alternative: the one that came furthest is what was meant.
    deepest = max(range(len(errors)), key=lambda index: len(paths[index]))
    return ".".join(paths[deepest]), str(errors[deepest]["msg"])


def _path(error: Mapping[str, Any], num_outer: int) -> list[str]:
    """The path to the field, without the names of alternatives."""
    parts = map(str, error["loc"][num_outer:])
    path = [part for part in parts if part not in _ALTERNATIVES and "[" not in part]
    return [*path, error["ctx"]["field"]] if "field" in error.get("ctx", {}) else path
