"""Runs the gateway under uvicorn until it is told to end."""

from __future__ import annotations

import errno
import logging
import math
import socket
import sys
from pathlib import Path
from typing import Any

from trtdecode.errors import ConfigError
from trtdecode.gateway.settings import GatewaySettings


def run_gateway(
    settings: GatewaySettings,
    host: str,
    port: int,
    *,
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
    drain_timeout: float = 30.0,
) -> None:
    """Listens and serves; SIGTERM and Ctrl-C let running requests finish, for `drain_timeout` seconds at most.

    Raises:
        ConfigError: the port is busy, a rule or certificate is not readable, or the gateway's packages are missing.
    """
    listener = _listen(host, port)
    uvicorn, create_app = _packages()
    for file in (tls_certificate, tls_key):
        if file is not None and not file.is_file():
            raise ConfigError(f"{file}: no such PEM file")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    app = create_app(settings)
    base: Any = uvicorn.Server

    class Server(base):  # type: ignore[misc]
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.engine_room.close()  # its streams have no end of their own, and would be waited for
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # ours is JSON and knows the caller
        ws="none",
        timeout_graceful_shutdown=math.ceil(drain_timeout),
        ssl_certfile=tls_certificate,
        ssl_keyfile=tls_key,
    )
    scheme = "https" if tls_certificate else "http"
    print(f"gateway on {scheme}://{host}:{port}, in front of {', '.join(settings.triton_urls)}", flush=True)
    Server(config).run(sockets=[listener])


def check_can_run(host: str, port: int) -> None:
    """Raises ConfigError when the port is busy or a package is missing."""
    _packages()
    _listen(host, port).close()


def _packages() -> tuple[Any, Any]:
    try:
        import uvicorn

        from trtdecode.gateway.app import create_app
    except ImportError as error:
        raise ConfigError(
            f"the gateway needs {error.name}; install it with `pip install 'trtdecode[gateway]'`"
        ) from error
    return uvicorn, create_app


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port), backlog=512)
        # Connections inherit it. asyncio sets it only on sockets whose protocol is given by number, which these are
        # not; without it an answer's second packet waits for the first one's delayed acknowledgement: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        reason = "is busy" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
        raise ConfigError(f"port {port} of {host} {reason}; choose another with --port") from error
