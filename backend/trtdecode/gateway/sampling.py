"""OpenAI's fields -> the keys of `sampling_parameters`."""

from __future__ import annotations

import json
from typing import Any

from trtdecode.gateway.errors import invalid
from trtdecode.gateway.schemas import ChatRequest, CompletionRequest, NamedTool, Sampling

_SAME_NAME = (
    *("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "top_k", "min_p", "repetition_penalty"),
    *("min_tokens", "ignore_eos", "priority", "guided_regex", "guided_choice", "guided_grammar"),
)


def sampling_parameters(body: Sampling) -> dict[str, Any]:
    """The shared part. Fields that were not sent (or are null) are left to the backend's defaults.

    Raises:
        GatewayError: 400 for a logit_bias key that is not a token id.
    """
    mapping = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    if mapping.get("top_k") == -1:  # vLLM's way to say all
        mapping["top_k"] = 0
    if body.stop is not None:
        mapping["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    if body.logit_bias:
        wrong = [key for key in body.logit_bias if not key.isdecimal()]
        if wrong:
            raise invalid("logit_bias", f"logit_bias: key {wrong[0]!r} is not a token id")
        mapping["logit_bias"] = body.logit_bias
    if body.guided_json is not None:
        mapping["guided_json"] = _schema_text(body.guided_json)
    return mapping


def chat_parameters(body: ChatRequest) -> dict[str, Any]:
    """`sampling_parameters` of a chat request, with its response format or forced tool as a guide."""
    mapping = sampling_parameters(body)
    limit = body.max_completion_tokens or body.max_tokens
    if limit is not None:
        mapping["max_tokens"] = limit
    if body.logprobs:
        mapping["logprobs"] = body.top_logprobs or 0
    schema = _format_schema(body) or _tool_schema(body)
    if schema is not None:
        if any(key.startswith("guided_") for key in mapping):
            raise invalid("guided_json", "guided_*: cannot be combined with response_format or a forced tool_choice")
        mapping["guided_json"] = _schema_text(schema)
    return mapping


def completion_parameters(body: CompletionRequest) -> dict[str, Any]:
    """`sampling_parameters` of a completion request. Without max_tokens the answer runs to EOS or the context's end."""
    mapping = sampling_parameters(body)
    if body.max_tokens is not None:
        mapping["max_tokens"] = body.max_tokens
    if body.logprobs is not None:
        mapping["logprobs"] = body.logprobs
        if body.echo:
            mapping["prompt_logprobs"] = body.logprobs
    return mapping


def forced_tools(body: ChatRequest) -> bool:
    """Whether the answer must be a tool call."""
    return body.tool_choice == "required" or isinstance(body.tool_choice, NamedTool)


def _format_schema(body: ChatRequest) -> dict[str, Any] | None:
    if body.response_format is None or body.response_format.type == "text":
        return None
    if forced_tools(body):
        raise invalid("response_format", "response_format: cannot be combined with a forced tool_choice")
    if body.response_format.type == "json_object":
        return {"type": "object"}
    assert body.response_format.json_schema is not None, "validated by the schema"
    return body.response_format.json_schema.schema_


def _tool_schema(body: ChatRequest) -> dict[str, Any] | None:
    """One object {"name", "arguments"} whose arguments follow the schema of the tool it names."""
    if not forced_tools(body):
        return None
    wanted = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
    options = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": tool.function.parameters or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in body.tools or []
        if wanted in (None, tool.function.name)
    ]
    return options[0] if len(options) == 1 else {"anyOf": options}


def _schema_text(schema: dict[str, Any] | str) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)
