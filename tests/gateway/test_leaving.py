"""An answer that is given up: the stub on this machine is told at once."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from triton_fixtures import RunningServer, wait_for
from trtdecode.gateway.local_inspect import LocalInspector
from trtdecode.gateway.triton import Generation, TritonConnection
from trtdecode.server.control import RUNTIME_DIR_VARIABLE, ControlServer


def test_only_the_models_own_stubs_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is this process: it listens on a port, and its stubs' sockets name it."""
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path))
    told: list[str] = []

    def stub(model: str) -> ControlServer:
        def poll(command: dict[str, object]) -> dict[str, object]:
            told.append(model)
            return {}

        return ControlServer(model, {"status": lambda _: {"model": model, "server_pid": os.getpid()}, "poll": poll})

    async def leave(inspector: LocalInspector, replica: int) -> None:
        inspector.hurry(replica, "one")
        await asyncio.get_running_loop().shutdown_default_executor()

    stubs = [stub("one"), stub("two")]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"127.0.0.1:{listener.getsockname()[1]}"
        asyncio.run(leave(LocalInspector((url, "elsewhere.example:8001")), 0))
        assert told == ["one"]
        asyncio.run(leave(LocalInspector((url, "elsewhere.example:8001")), 1))
        assert told == ["one"]
    for made in stubs:
        made.close()


@pytest.mark.triton_server
def test_an_answer_read_to_its_end_is_not_left(gateway_server: RunningServer) -> None:
    left: list[str] = []

    async def ask(num_tokens: int, num_read: int) -> None:
        connection = TritonConnection(gateway_server.grpc_address, 30, left.append)
        sampling = {"max_tokens": num_tokens, "ignore_eos": True, "temperature": 0.0}
        pieces = connection.generate(Generation("chain", "x", sampling))
        for _ in range(num_read):
            if await anext(pieces, None) is None:
                break
        await pieces.aclose()
        await connection.close()

    asyncio.run(ask(3, 100))
    assert left == []
    asyncio.run(ask(1500, 1))
    assert left == ["chain"]
    wait_for(lambda: gateway_server.is_idle("chain"), what="the request is gone")
