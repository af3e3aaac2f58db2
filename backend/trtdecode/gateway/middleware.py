"""What every HTTP request passes before its end point: body size, request id, API key, limits, access log.

Plain ASGI: Starlette's function middleware hides the client's disconnect from the end point, which must see it.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trtdecode.gateway.errors import GatewayError
from trtdecode.gateway.limits import CallerLimits, KeyRing

log = logging.getLogger("trtdecode.gateway.access")

REQUEST_ID_HEADER = "x-request-id"
MAX_REQUEST_ID = 128
#: Open to health checks, scrapers and browsers without a key; nothing here asks the model.
OPEN_PATHS = frozenset({"/", "/health", "/metrics", "/openapi.json", "/page/app.js", "/page/style.css"})


class RequestGate:
    """Answers what may not pass with OpenAI's error object, and logs one JSON line a request."""

    def __init__(self, app: ASGIApp, *, keys: KeyRing, limits: CallerLimits, max_body_bytes: int) -> None:
        self._app = app
        self._keys = keys
        self._limits = limits
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = _AccessRecord(scope, request_id(Headers(scope=scope)))
        scope.setdefault("state", {})["record"] = record
        entered = None
        try:
            if scope["path"] not in OPEN_PATHS and scope["method"] != "OPTIONS":
                record.fields["caller"] = self._keys.identify(Headers(scope=scope).get("authorization"))
                if scope["method"] == "POST":
                    self._limits.enter(record.fields["caller"])
                    entered = record.fields["caller"]
            body = await _read_body(receive, self._max_body_bytes)
            await self._app(scope, _replay(body, receive), record.wrap(send))
        except GatewayError as error:
            await error_response(error)(scope, receive, record.wrap(send))
        except Exception as error:
            log.exception("request %s failed", record.request_id)
            if "status" not in record.fields:  # else the answer has begun: all that is left is to end it
                unexpected = GatewayError(500, f"internal error ({type(error).__name__}); see the gateway's log")
                await error_response(unexpected)(scope, receive, record.wrap(send))
        finally:
            if entered is not None:
                self._limits.leave(entered)
            record.write()


def request_id(headers: Headers) -> str:
    """The caller's id when it is short printable ASCII, else a fresh one. For logs and headers: never a key."""
    given = headers.get(REQUEST_ID_HEADER, "")
    if 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex


def error_response(error: GatewayError) -> JSONResponse:
    """OpenAI's error object as a response."""
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)


async def _read_body(receive: Receive, max_bytes: int) -> bytes:
    """The whole body, counted as it comes: Content-Length is only a claim.

    Raises:
        GatewayError: 413 beyond the limit.
    """
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > max_bytes:
            raise GatewayError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")
    return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, then what comes after it: the disconnect."""
    messages: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


class _AccessRecord:
    """One line of the access log; end points add fields. Prompts are in it only when the settings say so."""

    def __init__(self, scope: Scope, id_: str) -> None:
        self._start = time.monotonic()
        self.request_id = id_
        self.fields: dict[str, Any] = {"request_id": id_, "method": scope["method"], "path": scope["path"]}

    def wrap(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.fields["status"] = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = self.request_id
            await send(message)

        return sending

    def write(self, emit: Callable[[str], None] = log.info) -> None:
        self.fields["seconds"] = round(time.monotonic() - self._start, 6)
        self.fields.setdefault("status", 499)  # the client left before an answer began
        emit(json.dumps(self.fields, ensure_ascii=False))
