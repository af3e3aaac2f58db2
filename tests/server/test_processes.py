"""What /proc tells of servers."""

import os
import socket

from trtdecode.server.processes import listener_of


def test_the_listener_of_a_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert listener_of(listener.getsockname()[1]) == os.getpid()
        port = listener.getsockname()[1]
    assert listener_of(port) is None
