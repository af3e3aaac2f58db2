"""Dead, replaced, unloaded or hung: what the supervisor concludes from processes and the index."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from trtdecode.server.client import HttpAnswer
from trtdecode.server.control import RUNTIME_DIR_VARIABLE, ControlServer
from trtdecode.server.health import HUNG_AFTER_S, Liveness, StubWatch, counter_sum, hung_load
from trtdecode.server.processes import (
    SHM,
    StubProcess,
    group_members,
    is_running,
    list_stubs,
    remove_orphaned_regions,
)


def stub(pid: int, instance: str = "m_0", alive: bool = True) -> StubProcess:
    return StubProcess(pid, instance if alive else "", alive)


def index(*rows: tuple[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "version": "1", "state": state} for name, state in rows]


READY = index(("m", "READY"))


def test_a_zombie_seen_twice_is_dead() -> None:
    watch = StubWatch()
    assert watch.look([stub(1)], READY) is None
    assert watch.look([stub(1, alive=False)], READY) is None, "it may just be waited for"
    assert watch.look([stub(1, alive=False)], READY) == "the stub of m_0 (pid 1) died"


def test_a_zombie_never_seen_alive_is_dead_too() -> None:
    watch = StubWatch()
    watch.look([stub(1, alive=False)], READY)
    assert watch.look([stub(1, alive=False)], READY) == "the stub of a model (pid 1) died"


def test_a_stub_that_vanished_while_its_model_is_ready_is_dead() -> None:
    watch = StubWatch()
    watch.look([stub(1)], READY)
    watch.look([], READY)
    assert watch.look([], READY) is not None


def test_an_unloaded_stub_is_not_dead() -> None:
    watch = StubWatch()
    watch.look([stub(1)], READY)
    for _ in range(3):
        assert watch.look([], index(("m", "UNAVAILABLE"))) is None


def test_a_replaced_stub_is_not_dead() -> None:
    watch = StubWatch()
    watch.look([stub(1)], READY)
    for _ in range(3):
        assert watch.look([stub(2)], READY) is None


def test_one_of_two_versions_dying_is_noticed() -> None:
    both = [{"name": "m", "version": version, "state": "READY"} for version in "12"]
    watch = StubWatch()
    watch.look([stub(1), stub(2)], both)
    watch.look([stub(2)], both)
    assert watch.look([stub(2)], both) == "the stub of m_0 (pid 1) died"


def test_the_longest_model_name_owns_the_stub() -> None:
    rows = index(("m", "READY"), ("m_big", "UNAVAILABLE"))
    watch = StubWatch()
    watch.look([stub(1, "m_0"), stub(2, "m_big_0")], rows)
    for _ in range(3):
        assert watch.look([stub(1, "m_0")], rows) is None, "m_big was unloaded"


def test_a_load_whose_stub_has_long_been_ready_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path))
    loading, stubs = index(("m", "LOADING"), ("other", "READY")), [stub(os.getpid())]
    assert hung_load(stubs, loading) is None, "the stub is still busy: no control socket"
    control = ControlServer("m_0", {})
    assert hung_load(stubs, loading) is None, "it has only just finished"
    long_ago = time.time() - HUNG_AFTER_S - 5
    os.utime(control.path, (long_ago, long_ago))
    assert "the load of m hangs" in (hung_load(stubs, loading) or "")
    assert hung_load(stubs, READY) is None
    assert hung_load([*stubs, stub(2, "m_1")], loading) is None, "another instance is still loading"
    control.close()


class FakeClient:
    """Answers of a server, by hand."""

    def __init__(self) -> None:
        self.tokens = 0.0
        self.answer: HttpAnswer | Exception = HttpAnswer(200, b"{}")
        self.generated: list[str] = []

    def metrics(self) -> str:
        return f'# HELP x\ntrtdecode_generation_tokens_total{{model="m"}} {self.tokens}\n'

    def ready_models(self) -> list[str]:
        return ["m", "python_model"]

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = 0) -> HttpAnswer:
        backend = b"trtdecode" if "/m/" in path else b"python"
        return HttpAnswer(200, b'{"backend": "%s"}' % backend)

    def generate(self, model: str, body: dict[str, Any], timeout_s: float) -> HttpAnswer:
        self.generated.append(model)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_liveness_asks_our_models_only_and_only_when_nothing_moves() -> None:
    client, liveness = FakeClient(), Liveness()
    assert liveness.check(client) is None  # type: ignore[arg-type]
    assert client.generated == ["m"]
    client.tokens = 5
    assert liveness.check(client) is None  # type: ignore[arg-type]
    assert client.generated == ["m"], "tokens were generated since: it lives"
    assert liveness.check(client) is None  # type: ignore[arg-type]
    assert client.generated == ["m", "m"]


@pytest.mark.parametrize(
    ("answer", "alive"),
    [
        (HttpAnswer(200, b"{}"), True),
        (HttpAnswer(503, b"queue is full"), True),
        (HttpAnswer(400, b"model is draining"), True),
        (HttpAnswer(400, b"Stub process 'm_0' is not healthy."), False),
        (HttpAnswer(500, b"internal"), False),
        (TimeoutError("timed out"), False),
        (ConnectionRefusedError(), False),
    ],
)
def test_a_refusal_is_an_answer_and_silence_is_not(answer: HttpAnswer | Exception, alive: bool) -> None:
    client = FakeClient()
    client.answer = answer
    assert (Liveness().check(client) is None) is alive  # type: ignore[arg-type]


def test_counter_sum() -> None:
    text = 'a_total{x="1"} 2\na_total{x="2"} 3.5\nb_total 9\n# a_total\n'
    assert (counter_sum(text, "a_total"), counter_sum(text, "c")) == (5.5, 0.0)


def test_processes_are_read_from_proc() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    assert is_running(child.pid)
    assert group_members(child.pid) == [child.pid]
    assert list_stubs(os.getpid()) == [], "a child that is no stub is not listed"
    child.kill()
    deadline = time.monotonic() + 5
    while is_running(child.pid):  # a zombie until it is waited for
        assert time.monotonic() < deadline
    child.communicate()
    assert not is_running(child.pid)
    assert group_members(child.pid) == []


def test_regions_of_another_user_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/shm is sticky: on a shared machine a user sees regions that only their owner may unlink."""
    region = SHM / f"othertest{os.getpid()}_{2**22 + 1}_x"
    region.touch()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(type(region), "unlink", _refuse)
            assert remove_orphaned_regions(f"othertest{os.getpid()}_") == []
        assert region.exists()
    finally:
        region.unlink()


def _refuse(path: object) -> None:
    raise PermissionError(1, "Operation not permitted", str(path))


def test_regions_are_orphans_only_when_launcher_and_users_are_gone() -> None:
    prefix = f"orphantest{os.getpid()}_"
    dead = 2**22 + 1  # beyond the kernel's largest pid
    mapped, orphan, own, foreign = (
        SHM / f"{prefix}{name}" for name in (f"{dead}_mapped", f"{dead}_orphan", f"{os.getpid()}_own", "foreign")
    )
    for region in (mapped, orphan, own, foreign):
        region.write_bytes(bytes(4096))
    try:
        with mapped.open("r+b") as file, mmap.mmap(file.fileno(), 0):
            assert remove_orphaned_regions(prefix) == [orphan.name]
        assert remove_orphaned_regions(prefix) == [mapped.name]
        assert own.exists() and foreign.exists()
    finally:
        for region in (mapped, orphan, own, foreign):
            region.unlink(missing_ok=True)
