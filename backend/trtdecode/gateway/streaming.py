"""Server-sent events, and ending work when the client goes away.

Starlette notices a disconnect at the next write; a model in a long prefill writes nothing. So whoever waits for Triton
also waits for the client's disconnect, and the first of the two ends the other: closing the Triton stream cancels the
request there at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trtdecode.gateway.errors import GatewayError

T = TypeVar("T")

#: A reader that takes nothing for this long is gone: what it has not read is held in memory here and in Triton.
SLOW_READER_TIMEOUT = 30.0


class ClientGone(Exception):
    """The client closed the connection."""


async def until_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Awaits `work`; cancels it when the client disconnects, and raises ClientGone then."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends an iterator of JSON objects as server-sent events, closed by `data: [DONE]`.

    The first object is awaited before the status goes out, so that a request refused by Triton gets a real HTTP error.
    An error later in the stream becomes one event with OpenAI's error object, then the end.
    """

    def __init__(self, events: AsyncGenerator[dict[str, Any]], first: dict[str, Any], headers: dict[str, str]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers})
        self.headers["Content-Type"] = "text/event-stream; charset=utf-8"
        del self.headers["Content-Length"]
        self._events = events
        self._first = first

    @classmethod
    async def open(
        cls, request: Request, events: AsyncGenerator[dict[str, Any]], headers: dict[str, str]
    ) -> EventStream:
        """Waits for the first event. Raises what it raises, and ClientGone."""
        first = await until_disconnect(request, _next(events))
        return cls(events, first, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            await until_disconnect(request, self._run(send))
        except (ClientGone, TimeoutError):
            pass
        finally:
            await self._events.aclose()

    async def _run(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._send(send, self._first)
        try:
            async for event in self._events:
                await self._send(send, event)
        except GatewayError as error:
            await self._send(send, error.body)
        await self._body(send, b"data: [DONE]\n\n", more=False)

    async def _send(self, send: Send, event: dict[str, Any]) -> None:
        await self._body(send, f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode(), more=True)

    async def _body(self, send: Send, body: bytes, *, more: bool) -> None:
        async with asyncio.timeout(SLOW_READER_TIMEOUT):
            await send({"type": "http.response.body", "body": body, "more_body": more})


async def _next(events: AsyncGenerator[dict[str, Any]]) -> dict[str, Any]:
    return await anext(events)
