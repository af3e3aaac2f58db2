"""Chat templates: messages to the text that the model was trained on, as Hugging Face's `apply_chat_template` does.

The template comes with the model and is a program: it runs in jinja2's immutable sandbox. What it says by
`raise_exception` is about the caller's messages, so it becomes an InvalidRequest. `chat_ids.py` turns messages into
token ids; this text alone is for people and tests.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trtdecode.errors import InvalidRequest, ManifestError

Message = Mapping[str, Any]

#: Roles that OpenAI's API and the usual templates know. Templates put them into control text unescaped.
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")

#: What a template's expressions raise on values that they did not expect.
_MESSAGE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


class ChatTemplate:
    """A compiled template.

    Args:
        source: jinja2 text.
        variables: what every rendering sees: bos_token, eos_token, ...

    Raises:
        ManifestError: the template is not valid jinja2.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        import jinja2
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _generation_tag()]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ManifestError(f"chat_template: not valid jinja2 ({error}); import the model again") from error
        self._variables = dict(variables)
        self._template_error = jinja2.TemplateError

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text.

        Args:
            messages: as `checked_messages` returns them.
            tools: OpenAI's tool objects.
            add_generation_prompt: end with the start of the assistant's turn.
            extra: further template variables (`enable_thinking`, ...).

        Raises:
            InvalidRequest: the template refuses the messages, or fails on them.
        """
        try:
            return self._template.render(
                {
                    **self._variables,
                    **(extra or {}),
                    "messages": messages,
                    "tools": tools,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except (
            self._template_error,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            AttributeError,
            RecursionError,
        ) as error:
            raise InvalidRequest("messages", _roles(messages), f"refused by the chat template: {error}") from error


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """OpenAI messages in the form templates expect: content a string, tool-call arguments an object.

    Raises:
        InvalidRequest: not a list of messages, an unknown role, content that is not text.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InvalidRequest("messages", messages, "must be a list of at least one message")
    return [_checked_message(index, message) for index, message in enumerate(messages)]


def _checked_message(index: int, message: Any) -> dict[str, Any]:
    field = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequest(field, message, "must be an object with role and content")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{field}.role", role, f"must be one of {', '.join(ROLES)}")
    checked = {key: value for key, value in message.items() if value is not None}
    checked["content"] = _text_of(f"{field}.content", message)
    if "tool_calls" in checked:
        checked["tool_calls"] = [_checked_call(field, call) for call in _list_of(field, checked["tool_calls"])]
    return checked


def _text_of(field: str, message: Message) -> str:
    """The content as one string; text parts are joined by newlines, as vLLM does."""
    content = message.get("content")
    if content is None:
        if message.get("tool_calls"):
            return ""
        raise InvalidRequest(field, content, "must be a string or a list of text parts")
    if isinstance(content, str):
        return content
    texts = []
    for part in _list_of(field, content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(field, part, 'must be {"type": "text", "text": "..."}: this server takes text only')
        texts.append(part["text"])
    return "\n".join(texts)


def _list_of(field: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidRequest(field, value, "must be a list")
    return list(value)


def _checked_call(field: str, call: Any) -> dict[str, Any]:
    """OpenAI sends a call's arguments as JSON text; templates want the object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{field}.tool_calls", call, "must be an object with a function")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{field}.tool_calls", arguments, f"arguments must be JSON ({error})") from None
    return {**call, "function": {**function, "arguments": arguments}}


def _roles(messages: Sequence[Message]) -> list[Any]:
    return [message.get("role") for message in messages]


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes for HTML; models were trained on plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _generation_tag() -> type:
    """`{% generation %}` marks the assistant's text for training masks; here its body is rendered as it is."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class GenerationTag(Extension):
        tags = {"generation"}

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return GenerationTag
