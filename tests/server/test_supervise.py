"""The supervisor's decisions, with servers that do as told; the real ones are in tests/integration."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from trtdecode.errors import ServerError
from trtdecode.server.processes import StubProcess
from trtdecode.server.supervise import Supervisor, SupervisorOptions

FAST = SupervisorOptions(
    poll_s=0.01, first_backoff_s=0.01, max_backoff_s=0.05, liveness_interval_s=60, max_failed_starts=3
)


class FakeServer:
    """A TritonServer in name; `script` says what happens to it."""

    pid = 1
    exit_reason = "was ended by SIGSEGV"

    def __init__(self, script: str) -> None:
        self.script = script
        self.is_running = False
        self.calls: list[str] = []
        self.client = self

    def start(self, timeout_s: float) -> None:
        if self.script == "no start":
            raise ServerError("port 8000 is busy")
        self.is_running = self.script != "exits"

    def stubs(self) -> list[StubProcess]:
        return [StubProcess(5, "", False)] if self.script == "stub dies" else [StubProcess(5, "m_0", True)]

    def index(self) -> list[dict[str, str]]:
        return [{"name": "m", "state": "READY"}]

    def stop(self) -> int:
        self.calls.append("stop")
        return 0

    def kill(self) -> int:
        self.calls.append("kill")
        return 0


class World:
    """Servers in the order of their scripts, and what was logged."""

    def __init__(self, *scripts: str) -> None:
        self.scripts = list(scripts)
        self.servers: list[FakeServer] = []
        self.restarts: list[int] = []
        self.lines: list[str] = []
        self.supervisor = Supervisor(self.make, FAST, log=self.lines.append, on_ready=self.ready)

    def make(self, num_restarts: int) -> Any:
        self.restarts.append(num_restarts)
        self.servers.append(FakeServer(self.scripts.pop(0)))
        return self.servers[-1]

    def ready(self, server: Any) -> None:
        if server.script == "serves":
            self.supervisor.stop()


def test_a_dead_stub_and_a_dead_server_are_restarted() -> None:
    world = World("stub dies", "exits", "serves")
    assert world.supervisor.run() == 0
    assert world.restarts == [0, 1, 2]
    assert all("kill" in server.calls for server in world.servers)
    assert "(pid 5) died; restarting tritonserver" in world.lines[0]
    assert "tritonserver was ended by SIGSEGV; restarting" in world.lines[1]
    assert world.servers[2].calls[0] == "stop"


def test_the_first_start_s_failure_is_the_caller_s() -> None:
    world = World("no start")
    with pytest.raises(ServerError, match="busy"):
        world.supervisor.run()


def test_later_failed_starts_are_tried_again_and_then_given_up() -> None:
    world = World("exits", "no start", "no start", "serves")
    assert world.supervisor.run() == 0
    world = World("exits", "no start", "no start", "no start")
    assert world.supervisor.run() == 1
    assert "giving up after 3 failed starts: port 8000 is busy" in world.lines[-1]


def test_the_backoff_doubles_up_to_its_bound() -> None:
    world = World("exits", "exits", "exits", "exits", "serves")
    world.supervisor.run()
    waits = [line.split(" in ")[1].split(" s ")[0] for line in world.lines if "restarting" in line]
    assert waits == ["0.01", "0.02", "0.04", "0.05"]


def test_stop_while_waiting_to_restart_ends_at_once() -> None:
    slow = SupervisorOptions(poll_s=0.01, first_backoff_s=60)
    world = World("exits")
    world.supervisor = Supervisor(world.make, slow, log=world.lines.append)
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(world.supervisor.run()))
    thread.start()
    _wait(lambda: any("restarting" in line for line in world.lines))
    world.supervisor.stop()
    thread.join(5)
    assert results == [0]


def _wait(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("not within 5 s")
