"""What clients send, and what becomes of it."""

import json

import pytest
from pydantic import ValidationError
from trtdecode.gateway.errors import GatewayError, from_triton
from trtdecode.gateway.sampling import chat_parameters, completion_parameters
from trtdecode.gateway.schemas import ChatRequest, CompletionRequest
from trtdecode.gateway.tools import parse_tool_calls

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "required": ["a"]}}}


def chat(**fields: object) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})


def test_null_means_not_given() -> None:
    body = chat(temperature=None, stop=None, max_tokens=None, logit_bias=None, n=None)
    assert chat_parameters(body) == {"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def test_fields_become_sampling_parameters() -> None:
    body = chat(
        stop="x", max_completion_tokens=5, top_k=-1, logit_bias={"7": 2.0}, logprobs=True, top_logprobs=3, seed=1
    )
    mapping = chat_parameters(body)
    assert mapping["stop"] == ["x"]
    assert (mapping["max_tokens"], mapping["top_k"], mapping["logprobs"], mapping["seed"]) == (5, 0, 3, 1)
    assert mapping["logit_bias"] == {"7": 2.0}
    completion = CompletionRequest.model_validate({"model": "m", "prompt": "hi", "logprobs": 0})
    assert completion_parameters(completion)["logprobs"] == 0
    assert "max_tokens" not in completion_parameters(completion)


def test_formats_and_forced_tools_become_one_guide() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    body = chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
    assert json.loads(chat_parameters(body)["guided_json"]) == schema
    forced = json.loads(chat_parameters(chat(tools=[TOOL], tool_choice="required"))["guided_json"])
    assert forced["properties"]["name"] == {"const": "add"}
    assert forced["properties"]["arguments"] == TOOL["function"]["parameters"]
    assert "guided_json" not in chat_parameters(chat(tools=[TOOL]))
    with pytest.raises(GatewayError, match="response_format"):
        chat_parameters(chat(tools=[TOOL], tool_choice="required", response_format={"type": "json_object"}))


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "wizard", "content": "x"}]},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": "0.5"},
        {"top_p": 1.5},
        {"n": 0},
        {"n": True},
        {"stream_options": {"include_usage": True}},
        {"top_logprobs": 2},
        {"max_tokens": 1, "max_completion_tokens": 2},
        {"tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
        {"tools": [TOOL, TOOL]},
        {"response_format": {"type": "json_schema"}},
        {"seed": -1},
        {"nonsense": 1},
        {"user": "half a pair \ud83c"},
        {"guided_json": {"enum": ["\udc00"]}},
        {"logit_bias": {"\ud800": 1}},
    ],
)
def test_wrong_bodies_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        chat(**fields)


@pytest.mark.parametrize("prompt", ["", "x", [1, 2], ["a", "b"], [[1], [2, 3]]])
def test_prompts_in_all_forms(prompt: object) -> None:
    body = CompletionRequest.model_validate({"model": "m", "prompt": prompt})
    flat = isinstance(prompt, str) or isinstance(prompt[0], int)
    assert body.prompts == ([prompt] if flat else prompt)


@pytest.mark.parametrize("prompt", [[], [[]], None, 5, [1, "a"], [["a"]]])
def test_empty_and_mixed_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(ValidationError):
        CompletionRequest.model_validate({"model": "m", "prompt": prompt})


def test_a_logit_bias_key_must_be_a_token_id() -> None:
    with pytest.raises(GatewayError, match="'x' is not a token id"):
        chat_parameters(chat(logit_bias={"x": 1.0}))


def test_tool_calls_are_found_and_talk_about_json_is_not_a_call() -> None:
    names = {"add"}
    text, calls = parse_tool_calls('Well. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', names)
    assert (text, calls[0]["function"]) == ("Well.", {"name": "add", "arguments": '{"a": 1}'})
    text, calls = parse_tool_calls(' {"name": "add", "parameters": {"a": 2}} ', names)
    assert (text, calls[0]["function"]["arguments"]) == ("", '{"a": 2}')
    for plain in ('{"name": "sub", "arguments": {}}', "add(1)", '<tool_call>{"name": 3}</tool_call>', '["add"]', ""):
        assert parse_tool_calls(plain, names) == (plain, [])


@pytest.mark.parametrize(
    ("status", "message", "http", "param"),
    [
        ("StatusCode.INVALID_ARGUMENT", "top_p: got 2; must be in (0, 1]", 400, "top_p"),
        ("StatusCode.INVALID_ARGUMENT", "unexpected: shape", 400, None),
        ("StatusCode.UNAVAILABLE", "queue is full (max_queue_size 4); retry later", 503, None),
        ("StatusCode.UNAVAILABLE", "deadline of 5 ms exceeded while waiting", 504, None),
        ("StatusCode.CANCELLED", "request cancelled", 499, None),
        (None, "boom", 500, None),
    ],
)
def test_triton_statuses_become_http(status: str | None, message: str, http: int, param: str | None) -> None:
    error = from_triton(status, message)
    assert (error.status, error.param) == (http, param)
    assert ("Retry-After" in error.headers) == (http == 503)
    assert error.body["error"]["message"] == message
