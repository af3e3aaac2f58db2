"""What the OpenAPI document says of answers; tests/gateway/test_openapi.py holds the gateway to it."""

from __future__ import annotations

from typing import Any

Responses = dict[int | str, dict[str, Any]]


def _object(**properties: Any) -> dict[str, Any]:
    """An object that has all of these properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
_NULLABLE_TEXT = {"anyOf": [_TEXT, {"type": "null"}]}
_REASON = {"enum": ["stop", "length", "tool_calls", "cancelled"]}
_USAGE = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)


def _generated(kind: str, choice: dict[str, Any]) -> Responses:
    whole = _object(
        id=_TEXT,
        object={"const": kind},
        created=_COUNT,
        model=_TEXT,
        choices={"type": "array", "minItems": 1, "items": choice},
        usage=_USAGE,
    )
    events = _object(data=_TEXT) | {"description": "With stream: true: OpenAI's chunks, then [DONE]"}
    content = {"application/json": {"schema": whole}, "text/event-stream": {"schema": events}}
    return {200: {"description": "The answer", "content": content}}


CHAT = _generated(
    "chat.completion",
    _object(
        index=_COUNT,
        message=_object(role={"const": "assistant"}, content=_NULLABLE_TEXT),
        finish_reason=_REASON,
    ),
)
COMPLETION = _generated("text_completion", _object(index=_COUNT, text=_TEXT, finish_reason=_REASON))
MODELS: Responses = {
    200: {
        "description": "Models that are ready",
        "content": {
            "application/json": {
                "schema": _object(
                    object={"const": "list"},
                    data={"type": "array", "items": _object(id=_TEXT, object={"const": "model"})},
                )
            }
        },
    }
}
HEALTH: Responses = {
    200: {
        "description": "At least one server is ready",
        "content": {
            "application/json": {"schema": _object(status={"const": "ready"}, replicas_ready=_COUNT, replicas=_COUNT)}
        },
    }
}

_ERROR = _object(error=_object(message=_TEXT, type=_TEXT, param=_NULLABLE_TEXT, code=_NULLABLE_TEXT))
ERRORS: Responses = {
    status: {"description": description, "content": {"application/json": {"schema": _ERROR}}}
    for status, description in (
        (400, "The body is wrong; `error.param` names the field"),
        (401, "No API key, or one that is not known"),
        (404, "No such model"),
        (413, "The body is too large"),
        (429, "The caller's limit is reached; see Retry-After"),
        (500, "The model failed"),
        (501, "Not configured"),
        (503, "The inference server is away or full; see Retry-After"),
        (504, "The deadline passed"),
    )
}
