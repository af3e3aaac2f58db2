"""Finding tool calls in a finished answer."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

#: Hermes' form, which most open models were trained on: <tool_call>{"name": ..., "arguments": {...}}</tool_call>
_TAGGED = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def parse_tool_calls(text: str, names: set[str]) -> tuple[str, list[dict[str, Any]]]:
    """Splits an answer into what is said and what is called.

    Understands Hermes' tags, and an answer that is as a whole one JSON object {"name", "arguments"}. What names no
    given tool stays text: a model that talks about JSON is not calling.
    """
    calls = []

    def take(match: re.Match[str]) -> str:
        call = _call(match[1], names)
        if call is None:
            return match[0]
        calls.append(call)
        return ""

    rest = _TAGGED.sub(take, text)
    if calls:
        return rest.strip(), calls
    whole = _call(text.strip(), names)
    return ("", [whole]) if whole else (text, [])


def _call(text: str, names: set[str]) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("name") not in names:
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": found["name"], "arguments": json.dumps(arguments, ensure_ascii=False)},
    }
