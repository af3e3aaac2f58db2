"""The page at `/`: three static files beside this one, and the engine room's stream."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response

from trtdecode.gateway.streaming import EventStream

_FOLDER = Path(__file__).parent
_TYPES = {"index.html": "text/html", "app.js": "text/javascript", "style.css": "text/css"}
#: Nothing from elsewhere, nothing inline: what a model writes can never become a script.
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'"


def mount(app: FastAPI) -> None:
    """Adds `/`, `/page/*` and `/v1/engine`."""

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return _file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return _file(name) if name in _TYPES else Response(status_code=404)

    @app.get("/v1/engine", include_in_schema=False)
    async def engine(request: Request) -> Response:
        return await EventStream.open(request, app.state.engine_room.events(), {})


def _file(name: str) -> FileResponse:
    headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    return FileResponse(_FOLDER / name, media_type=_TYPES[name], headers=headers)
