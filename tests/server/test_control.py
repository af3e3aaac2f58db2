"""The control socket and `drain` against it: real sockets, no server."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trtdecode.errors import ServerError
from trtdecode.server.control import RUNTIME_DIR_VARIABLE, ControlServer, ControlSocket, list_control_sockets
from trtdecode.server.drain import drain, resume


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(folder))
    return folder


class Model:
    """What a stub answers."""

    def __init__(self, name: str, version: str = "1", server_pid: int = 7) -> None:
        self.facts = {"model": name, "version": version, "server_pid": server_pid, "live": 2}
        self.drained: list[dict[str, Any]] = []
        self.drain_seconds = 0.0
        self.is_resumed = False
        handlers = {"drain": self._drain, "resume": self._resume, "status": lambda request: self.facts}
        self.server = ControlServer(f"{name}_{version}_0", handlers)

    def _drain(self, request: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.drain_seconds)
        self.drained.append(request)
        return {"drained": True, "live": 0}

    def _resume(self, request: dict[str, Any]) -> dict[str, Any]:
        self.is_resumed = True
        return {}


@pytest.fixture
def models() -> Iterator[list[Model]]:
    made = [Model("a"), Model("a", "2"), Model("b", server_pid=8)]
    yield made
    for model in made:
        model.server.close()


def test_the_folder_and_the_sockets_are_the_user_s_alone(models: list[Model], runtime: Path) -> None:
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in runtime.iterdir()} == {0o600}


def test_drain_selects_by_model_version_and_server(models: list[Model]) -> None:
    a1, a2, b = models
    assert [report.drained for report in drain("a", version="1", timeout_s=3, cancel=True)] == [True]
    assert a1.drained == [{"command": "drain", "cancel": True, "timeout_s": 3}]
    assert (a2.drained, b.drained) == ([], [])
    assert len(drain(server_pid=8)) == 1 and len(b.drained) == 1
    assert len(drain()) == 3


def test_instances_drain_at_once(models: list[Model]) -> None:
    for model in models:
        model.drain_seconds = 2.0
    begin = time.monotonic()
    assert len(drain()) == 3
    assert time.monotonic() - begin < 5.0, "one after another they take six"


def test_resume_reaches_the_model(models: list[Model]) -> None:
    assert resume("a") == 2
    assert [model.is_resumed for model in models] == [True, True, False]


def test_nobody_to_drain_is_one_line(models: list[Model]) -> None:
    with pytest.raises(ServerError, match="no running instance of model 'zzz' found"):
        drain("zzz")


def test_an_unknown_command_names_the_known_ones(models: list[Model]) -> None:
    with pytest.raises(ServerError, match=r"unknown command 'dance'; known: drain, resume, status"):
        ControlSocket(models[0].server.path).ask("dance")


@pytest.mark.parametrize("line", [b"", b"nonsense\n", b"[]\n", b'{"cmd": 1}\n', b"\xff\xfe\n"])
def test_garbage_is_answered_and_survived(models: list[Model], line: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(models[0].server.path))
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        assert b'"ok": false' in connection.makefile("rb").readline()
    assert ControlSocket(models[0].server.path).ask("status")["model"] == "a"


def test_a_handler_that_raises_is_that_asker_s_error(runtime: Path) -> None:
    def broken(request: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("no luck")

    server = ControlServer("x", {"status": broken})
    with pytest.raises(ServerError, match="refused 'status': no luck"):
        ControlSocket(server.path).ask("status")
    server.close()


def test_a_silent_stub_is_not_waited_for_for_ever(runtime: Path) -> None:
    release = threading.Event()
    server = ControlServer("x", {"status": lambda request: {"waited": release.wait(5)}})
    with pytest.raises(ServerError, match="does not answer 'status'"):
        ControlSocket(server.path).ask("status", 0.2)
    release.set()
    server.close()


def test_a_full_queue_of_askers_is_waited_for(runtime: Path) -> None:
    runtime.mkdir()
    path = runtime / f"{os.getpid()}-full_1_0.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)  # one may wait
        first.connect(str(path))
        asked = ControlSocket(path)
        with pytest.raises(ServerError, match=r"does not answer 'status': .*Resource temporarily unavailable"):
            asked.ask("status", wait_s=0.1)

        def answer_both() -> None:
            time.sleep(0.2)
            listener.accept()[0].close()
            connection = listener.accept()[0]
            connection.recv(1000)
            connection.sendall(b'{"ok": true, "live": 3}\n')
            connection.close()

        thread = threading.Thread(target=answer_both)
        thread.start()
        assert asked.ask("status")["live"] == 3
        thread.join()


def test_sockets_of_dead_stubs_are_removed(models: list[Model], runtime: Path) -> None:
    dead = runtime / "999999999-a_0.sock"
    dead.touch()
    assert {entry.stub_pid for entry in list_control_sockets()} == {os.getpid()}
    assert not dead.exists()


def test_close_removes_the_socket(runtime: Path) -> None:
    server = ControlServer("x", {})
    assert server.path.exists()
    server.close()
    assert list_control_sockets() == []
