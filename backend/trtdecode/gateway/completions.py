"""`/v1/completions`: several prompts at once, one answer or server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from trtdecode.gateway.answers import Answer, Sample, completion_logprobs, echoed_logprobs, usage
from trtdecode.gateway.schemas import CompletionRequest
from trtdecode.gateway.triton import Piece

Echo = Callable[[int], str]  # index of a prompt -> its text


def completion_response(
    body: CompletionRequest, answers: Sequence[Answer], answer_id: str, echo: Echo
) -> dict[str, Any]:
    """The `text_completion` object; choices are in the order of prompts, then samples."""
    choices: list[dict[str, Any]] = []
    for number, answer in enumerate(answers):
        prefix = echo(number) if body.echo else ""
        for sample in answer.samples:
            logprobs = _logprobs(body, answer, sample.logprobs, prefix, 0)
            text = prefix + sample.text
            choices.append(_choice(len(choices), text, logprobs, sample.finish_reason))
    return {**_head(body, answer_id), "choices": choices, "usage": _usage(answers)}


async def completion_events(
    body: CompletionRequest, streams: Sequence[AsyncGenerator[Piece]], num_samples: int, answer_id: str, echo: Echo
) -> AsyncGenerator[dict[str, Any]]:
    """The chunks of all prompts as they come, then usage if asked for."""
    head = _head(body, answer_id)
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    if include_usage:
        head["usage"] = None
    answers = [Answer([Sample() for _ in range(num_samples)]) for _ in streams]
    async with contextlib.aclosing(_merge(streams)) as merged:
        async for number, piece in merged:
            answer = answers[number]
            answer.prompt_logprobs = piece.prompt_logprobs or answer.prompt_logprobs
            for index, reason in enumerate(piece.finish_reasons):
                sample = answer.samples[index]
                prompt = echo(number) if body.echo else ""
                prefix = "" if sample.num_tokens else prompt
                num_before = len(prompt) - len(prefix) + len(sample.text)
                logprobs = _logprobs(body, answer, piece.logprobs[index] or [], prefix, num_before)
                text = prefix + piece.texts[index]
                if text or reason is not None or piece.num_output_tokens[index]:
                    yield {**head, "choices": [_choice(number * num_samples + index, text, logprobs, reason)]}
            answer.add(piece)
    if include_usage:
        yield {**head, "choices": [], "usage": _usage(answers)}


async def _merge(streams: Sequence[AsyncGenerator[Piece]]) -> AsyncGenerator[tuple[int, Piece]]:
    """Pieces of all streams as they come. The first error ends all; closing closes all."""
    # One slot: a stream whose pieces are not taken waits, it does not pile up.
    queue: asyncio.Queue[tuple[int, Piece | BaseException | None]] = asyncio.Queue(1)

    async def pump(number: int, stream: AsyncGenerator[Piece]) -> None:
        try:
            async for piece in stream:
                await queue.put((number, piece))
            await queue.put((number, None))
        except Exception as error:
            await queue.put((number, error))
        finally:
            await stream.aclose()

    tasks = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            number, item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield number, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _logprobs(
    body: CompletionRequest, answer: Answer, positions: list[dict[str, Any]], prefix: str, num_before: int
) -> dict[str, Any] | None:
    """`logprobs` of one choice or chunk, `num_before` characters into its text; of an echoed prompt too."""
    if body.logprobs is None:
        return None
    if prefix and answer.prompt_logprobs is not None:
        return echoed_logprobs(prefix, answer.prompt_logprobs, positions, body.logprobs)
    return completion_logprobs(positions, body.logprobs, len(prefix) + num_before)


def _usage(answers: Sequence[Answer]) -> dict[str, int]:
    num_tokens = sum(sample.num_tokens for answer in answers for sample in answer.samples)
    return usage(sum(answer.num_prompt_tokens for answer in answers), num_tokens)


def _head(body: CompletionRequest, answer_id: str) -> dict[str, Any]:
    return {"id": f"cmpl-{answer_id}", "object": "text_completion", "created": int(time.time()), "model": body.model}


def _choice(index: int, text: str, logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
