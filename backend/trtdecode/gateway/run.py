"""Runs the gateway under uvicorn until it is told to end."""

from __future__ import annotations

import errno
import logging
import socket
import sys
from pathlib import Path

from trtdecode.errors import ConfigError
from trtdecode.gateway.settings import GatewaySettings

#: Streams that run on at the end get this long.
GRACEFUL_SECONDS = 30


def run_gateway(
    settings: GatewaySettings, host: str, port: int, *, tls_certificate: Path | None = None, tls_key: Path | None = None
) -> None:
    """Listens and serves; SIGTERM and Ctrl-C let running streams finish.

    Raises:
        ConfigError: the port is busy, a rule or certificate is not readable, or the gateway's packages are missing.
    """
    try:
        import uvicorn

        from trtdecode.gateway.app import create_app
    except ImportError as error:
        raise ConfigError(
            f"the gateway needs {error.name}; install it with `pip install 'trtdecode[gateway]'`"
        ) from error
    for file in (tls_certificate, tls_key):
        if file is not None and not file.is_file():
            raise ConfigError(f"{file}: no such PEM file")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        listener = socket.create_server((host, port), backlog=512)
    except OSError as error:
        reason = "is busy" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
        raise ConfigError(f"port {port} of {host} {reason}; choose another with --port") from error
    config = uvicorn.Config(
        create_app(settings),
        log_level="warning",
        access_log=False,  # ours is JSON and knows the caller
        ws="none",
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
        ssl_certfile=tls_certificate,
        ssl_keyfile=tls_key,
    )
    scheme = "https" if tls_certificate else "http"
    print(f"gateway on {scheme}://{host}:{port}, in front of {', '.join(settings.triton_urls)}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])
