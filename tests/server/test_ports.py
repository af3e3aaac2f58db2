"""Ports: free ones are free, busy ones are named with the option that changes them."""

from __future__ import annotations

import socket

import pytest
from trtdecode.errors import ServerError
from trtdecode.server.ports import Ports, check_ports, free_ports


def test_free_ports_are_three_and_free() -> None:
    ports = free_ports()
    assert len({ports.http, ports.grpc, ports.metrics}) == 3
    check_ports(ports, "127.0.0.1")


@pytest.mark.parametrize("option", ["http", "grpc", "metrics"])
def test_a_busy_port_names_its_option(option: str) -> None:
    free = free_ports()
    numbers = {"http": free.http, "grpc": free.grpc, "metrics": free.metrics}
    text = rf"port {numbers[option]} on 127\.0\.0\.1 is busy.*--{option}-port"
    with socket.create_server(("127.0.0.1", numbers[option])), pytest.raises(ServerError, match=text):
        check_ports(Ports(**numbers), "127.0.0.1")


def test_an_address_that_is_not_ours_is_one_line() -> None:
    with pytest.raises(ServerError, match=r"cannot listen on 203\.0\.113\.1:.*see --http-port and --host"):
        check_ports(free_ports(), "203.0.113.1")
