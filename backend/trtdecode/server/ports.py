"""The three loopback ports of a tritonserver."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from trtdecode.errors import ServerError


@dataclass(frozen=True, slots=True)
class Ports:
    """HTTP, gRPC and metrics ports; the defaults are Triton's."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002


def free_ports() -> Ports:
    """Three ports nobody listens on at this moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    numbers = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return Ports(*numbers)


def check_ports(ports: Ports, host: str) -> None:
    """Tries to listen on each port.

    Raises:
        ServerError: naming the first busy port and the option that changes it, or that two are the same.
    """
    if len({ports.http, ports.grpc, ports.metrics}) < 3:
        raise ServerError(
            f"ports {ports.http}, {ports.grpc} and {ports.metrics} must differ; see --http-port, --grpc-port and "
            "--metrics-port"
        )
    for option, port in (("--http-port", ports.http), ("--grpc-port", ports.grpc), ("--metrics-port", ports.metrics)):
        try:
            # SO_REUSEADDR (create_server sets it) lets connections in TIME_WAIT be, as tritonserver does.
            socket.create_server((host, port)).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ServerError(f"port {port} on {host} is busy; choose another with {option}") from None
            raise ServerError(f"cannot listen on {host}:{port} ({error.strerror}); see {option} and --host") from None
