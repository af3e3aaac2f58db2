"""The bodies that OpenAI's clients send. Unknown fields are refused: an option ignored in silence is a wrong answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

#: Triton's tensor of token ids is INT32: a larger number would become another token there.
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Stop = str | Annotated[list[str], Field(max_length=64)] | None
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


def about(field: str, text: str) -> PydanticCustomError:
    """What a check of several fields raises: the field to change becomes the error's `param`."""
    return PydanticCustomError("fields_disagree", "{text}", {"field": field, "text": text})


class Strict(BaseModel):
    """Base of all bodies: exact JSON types, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Body(Strict):
    """Base of whole bodies."""

    @model_validator(mode="before")
    @classmethod
    def _is_unicode(cls, data: Any) -> Any:
        """JSON can spell half a surrogate pair, which is no character and cannot be sent on."""
        for field, value in data.items() if isinstance(data, dict) else ():
            for text in _strings([field, value]):
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    raise about(
                        field.encode("ascii", "replace").decode(),
                        f"must be valid Unicode: half a surrogate pair at {error.start}",
                    ) from None
        return data


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from _strings(item)


class StreamOptions(Strict):
    include_usage: bool = False


class TextPart(Strict):
    type: Literal["text"]
    text: str


class FunctionCall(Strict):
    name: Annotated[str, Field(min_length=1, max_length=64)]
    arguments: str


class ToolCall(Strict):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @model_validator(mode="after")
    def _has_content(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise about("content", "content is needed unless there are tool_calls")
        return self


class Function(Strict):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Strict):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and (self.json_schema is None or self.json_schema.schema_ is None):
            raise about("json_schema", "type json_schema needs json_schema.schema")
        return self


class Sampling(Body):
    """What both generation end points share. Beyond OpenAI's fields: vLLM's extra sampling parameters."""

    model: str
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = 1
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = 1.0
    top_p: Probability | None = 1.0
    stop: Stop = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    presence_penalty: Penalty | None = 0.0
    frequency_penalty: Penalty | None = 0.0
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    # vLLM's
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=2, allow_inf_nan=False)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    @model_validator(mode="after")
    def _options_need_stream(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise about("stream_options", "stream_options is only allowed when stream is true")
        return self


class ChatRequest(Sampling):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _agree(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise about("top_logprobs", "top_logprobs needs logprobs to be true")
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise about("max_tokens", "max_tokens and max_completion_tokens differ; send max_completion_tokens alone")
        names = [tool.function.name for tool in self.tools or []]
        if self.tool_choice not in (None, "none", "auto") and not names:
            raise about("tool_choice", "tool_choice needs tools")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            name = self.tool_choice.function.name
            raise about("tool_choice", f"tool_choice names {name!r}, which is not among tools")
        if len(names) != len(set(names)):
            raise about("tools", "two tools have the same name")
        return self


class CompletionRequest(Sampling):
    prompt: (
        str
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1)]
        | (Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1)])
    )
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = False

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts as a list: of texts, or of token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt
