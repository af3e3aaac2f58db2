"""A/B answers side by side: what one user was answered, and what the split's other targets say to the same prompt.

One JSON object a request, appended to a file:

    {"request_id": "...", "asked": "assistant", "answered_by": "smollm2", "answers": {
        "smollm2": {"texts": ["Paris."], "num_tokens": 3, "seconds": 0.21},
        "smollm2-int8": {"texts": ["Paris."], "num_tokens": 3, "seconds": 0.16}}}

The user waits for none of it; the other targets are asked afterwards. Targets must share a tokenizer, as precisions of
one model do: a chat's prompt is token ids by then. The file holds answers: treat it like them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from trtdecode.gateway.answers import Answer
from trtdecode.gateway.errors import GatewayError
from trtdecode.gateway.triton import Generation

log = logging.getLogger(__name__)

MAX_PENDING = 32  # requests whose other answers are still to come; more are logged without them

Ask = Callable[[Generation], Awaitable[Answer]]


class SplitLog:
    """Asks the other targets and writes the file. Lives on the gateway's event loop."""

    def __init__(self, path: Path, ask: Ask) -> None:
        self._path = path
        self._ask = ask
        self._pending: set[asyncio.Task[None]] = set()

    def compare(
        self, generation: Generation, asked: str, others: Sequence[str], answer: Answer, seconds: float
    ) -> None:
        """Takes a finished answer; returns at once."""
        if len(self._pending) >= MAX_PENDING:
            others = ()
        task = asyncio.create_task(self._run(generation, asked, others, _entry(answer, seconds)))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def close(self) -> None:
        """Gives up what is still to come."""
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)

    async def _run(self, generation: Generation, asked: str, others: Sequence[str], own: dict[str, Any]) -> None:
        answers = {generation.model: own}
        for other in others:
            start = time.monotonic()
            request_id = f"{generation.request_id}-{other}"
            try:
                answer = await self._ask(dataclasses.replace(generation, model=other, request_id=request_id))
                answers[other] = _entry(answer, time.monotonic() - start)
            except GatewayError as error:
                answers[other] = {"error": error.message}
        line = {
            "request_id": generation.request_id,
            "asked": asked,
            "answered_by": generation.model,
            "answers": answers,
        }
        try:
            await asyncio.to_thread(self._append, json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            log.error("%s: cannot be written (%s)", self._path, error.strerror)

    def _append(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)


def _entry(answer: Answer, seconds: float) -> dict[str, Any]:
    return {
        "texts": [sample.text for sample in answer.samples],
        "num_tokens": sum(sample.num_tokens for sample in answer.samples),
        "seconds": round(seconds, 3),
    }
