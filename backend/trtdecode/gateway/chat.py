"""`/v1/chat/completions`: one answer, or server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from trtdecode.gateway.answers import Answer, Sample, chat_logprobs, usage
from trtdecode.gateway.sampling import forced_tools
from trtdecode.gateway.schemas import ChatRequest
from trtdecode.gateway.tools import parse_tool_calls
from trtdecode.gateway.triton import Piece


def chat_response(body: ChatRequest, answer: Answer, answer_id: str) -> dict[str, Any]:
    """The `chat.completion` object."""
    choices = []
    for index, sample in enumerate(answer.samples):
        message, reason = _message(body, sample)
        logprobs = chat_logprobs(sample.logprobs, body.top_logprobs or 0) if body.logprobs else None
        choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
    num_tokens = sum(sample.num_tokens for sample in answer.samples)
    return {
        **_head(body, answer_id, "chat.completion"),
        "choices": choices,
        "usage": usage(answer.num_prompt_tokens, num_tokens),
    }


async def chat_events(
    body: ChatRequest, pieces: AsyncIterator[Piece], num_samples: int, answer_id: str
) -> AsyncGenerator[dict[str, Any]]:
    """The `chat.completion.chunk` objects: the role, deltas, a finish reason for each sample, then usage if asked for.

    With tools the text is held until the sample ends: only then is it known whether it was a call.
    """
    head = _head(body, answer_id, "chat.completion.chunk")
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    if include_usage:
        head["usage"] = None
    whole = Answer([Sample() for _ in range(num_samples)])
    started = False
    async for piece in pieces:
        whole.add(piece)
        if not started:
            # Not before Triton has said something: a refusal must be an HTTP error, not an event.
            started = True
            for index in range(num_samples):
                yield _chunk(head, index, {"role": "assistant", "content": ""})
        for index, reason in enumerate(piece.finish_reasons):
            logprobs = chat_logprobs(piece.logprobs[index] or [], body.top_logprobs or 0) if body.logprobs else None
            if body.tools and body.tool_choice != "none":
                if reason is not None:
                    message, reason = _message(body, whole.samples[index])
                    yield _chunk(head, index, _as_delta(message), logprobs)
            elif piece.texts[index] or (logprobs and logprobs["content"]):
                yield _chunk(head, index, {"content": piece.texts[index]}, logprobs)
            if reason is not None:
                yield _chunk(head, index, {}, finish_reason=reason)
    if include_usage:
        num_tokens = sum(sample.num_tokens for sample in whole.samples)
        yield {**head, "choices": [], "usage": usage(whole.num_prompt_tokens, num_tokens)}


def _message(body: ChatRequest, sample: Sample) -> tuple[dict[str, Any], str]:
    """The assistant's message and the finish reason of one finished sample."""
    message: dict[str, Any] = {"role": "assistant", "content": sample.text, "refusal": None}
    if not body.tools or body.tool_choice == "none":
        return message, sample.finish_reason
    text, calls = parse_tool_calls(sample.text, {tool.function.name for tool in body.tools})
    if not calls:
        return message, sample.finish_reason
    message["content"] = text or None
    message["tool_calls"] = calls if body.parallel_tool_calls is not False else calls[:1]
    # A forced call ends like an ordinary answer; a chosen one is what the client must act on.
    return message, "stop" if forced_tools(body) and sample.finish_reason == "stop" else "tool_calls"


def _as_delta(message: dict[str, Any]) -> dict[str, Any]:
    delta = {"content": message["content"]}
    if "tool_calls" in message:
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
    return delta


def _head(body: ChatRequest, answer_id: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer_id}", "object": kind, "created": int(time.time()), "model": body.model}


def _chunk(
    head: dict[str, Any], index: int, delta: dict[str, Any], logprobs: Any = None, finish_reason: str | None = None
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
    return {**head, "choices": [choice]}


def meaning(body: ChatRequest) -> tuple[str, str] | None:
    """What the semantic cache compares: the text of the last message, a user's, by its meaning; all before it, tools
    and format must be equal. None where the last message is not a user's text."""
    *before, last = body.messages
    if last.role != "user" or not last.text:
        return None
    rest = body.model_dump(mode="json", include={"tools", "tool_choice", "response_format"})
    rest["messages"] = [message.model_dump(mode="json") for message in before]
    rest["name"] = last.name
    return last.text, json.dumps(rest, sort_keys=True)
