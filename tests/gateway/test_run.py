"""The gateway's listening socket."""

from __future__ import annotations

import socket

import pytest
from trtdecode.errors import ConfigError
from trtdecode.gateway.run import _listen, check_can_run


def test_small_packets_do_not_wait_for_acknowledgements() -> None:
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_busy_port_is_named() -> None:
    with _listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is busy; choose another with --port"):
            check_can_run("127.0.0.1", port)
