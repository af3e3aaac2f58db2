"""A dump replays to the same decisions and the same tokens, and a changed one does not."""

from __future__ import annotations

import gc
import json
import logging
import stat
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simulation.builders import make_loop, make_request
from simulation.deferred_worker import DeferredWorker
from simulation.fake_executor import FakeExecutor
from simulation.fake_sampler import FakeSampler
from simulation.world import VOCAB_SIZE, World
from trtdecode.errors import LoadError
from trtdecode.loop import Loop
from trtdecode.overlap import OverlappedLoop
from trtdecode.recorder import MAX_FILES
from trtdecode.replay import replay_file


def overlapped(*args: Any, **kwargs: Any) -> Loop:
    return OverlappedLoop(*args, worker=DeferredWorker(), **kwargs)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def saved(world: World, path: Path) -> Path:
    assert world.loop.recorder.save(path) == path
    return path


@pytest.mark.parametrize("make", [Loop, overlapped], ids=["plain", "overlapped"])
@pytest.mark.parametrize("seed", range(12))
def test_a_dump_from_the_middle_of_a_run_replays(seed: int, make: Callable[..., Loop], tmp_path: Path) -> None:
    """Preemptions, forks, hits, faults and cancels included; the dump begins at a keyframe, not at the start."""
    world = World(seed, make)
    for _ in range(150 + 7 * seed):
        world.step()
    executor = FakeExecutor(world.executor.num_blocks, world.executor.block_size, world.window)
    report = replay_file(saved(world, tmp_path / "dump.json"), executor, FakeSampler(VOCAB_SIZE))
    assert report.differences == []
    assert report.is_same
    assert 16 <= report.num_steps <= 32
    assert report.num_tokens > 0
    assert report.num_regenerated == len(report.streams) > 0


def test_streams_are_all_tokens_of_the_recorded_requests(tmp_path: Path) -> None:
    loop = make_loop(recorder_steps=100)
    requests = [make_request([i, 2, 3], 5) for i in range(3)]
    loop.submit(*requests)
    loop.drain()
    path = loop.recorder.save(tmp_path / "dump.json")
    assert path is not None
    report = replay_file(path)
    assert report.streams == {request.request_id: request.output_ids for request in requests}
    assert (report.num_steps, report.num_tokens, report.num_regenerated) == (5, 15, 0)


def edited(path: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    dump = json.loads(path.read_text())
    edit(dump)
    path.write_text(json.dumps(dump))
    return path


def dump_of_a_run(tmp_path: Path) -> Path:
    loop = make_loop(recorder_steps=100)
    loop.submit(make_request(9, 5), make_request([1, 2, 3], 5))
    loop.drain()
    path = loop.recorder.save(tmp_path / "dump.json")
    assert path is not None
    return path


def test_another_block_is_a_difference(tmp_path: Path) -> None:
    def edit(dump: dict[str, Any]) -> None:
        scheduled = next(entry for entry in dump["entries"] if entry[0] == "scheduled")
        scheduled[5][0][1][0] += 1

    report = replay_file(edited(dump_of_a_run(tmp_path), edit))
    assert not report.is_same
    assert report.differences[0].startswith("step 0: new blocks were [[")


def test_another_token_is_a_difference_with_the_model(tmp_path: Path) -> None:
    def edit(dump: dict[str, Any]) -> None:
        updated = [entry for entry in dump["entries"] if entry[0] == "updated"]
        updated[2][5][0] += 1

    path = edited(dump_of_a_run(tmp_path), edit)
    assert replay_file(path).is_same  # decisions do not depend on it
    report = replay_file(path, FakeExecutor(65, 4), FakeSampler(VOCAB_SIZE))
    assert len(report.differences) == 1 and "recorded [" in report.differences[0]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format_version": 99}', '{"other": 1}'])
def test_what_is_no_dump_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(LoadError, match=r"file\.json: (not a flight recorder's dump|format_version 99)"):
        replay_file(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="not a flight recorder's dump"):
        replay_file(tmp_path / "nothing.json")


def test_the_ring_is_bounded_and_keeps_no_request(tmp_path: Path) -> None:
    class Receiver:
        def __call__(self, event: object) -> None:
            pass

    loop = make_loop(recorder_steps=10)
    receiver = Receiver()
    gone = weakref.ref(receiver)
    loop.submit(make_request(3, 60, on_event=receiver))
    del receiver
    while loop.step():
        pass
    gc.collect()
    assert gone() is None, "a finished request's callback is kept alive"
    assert 10 <= replay_file(loop.recorder.save(tmp_path / "dump.json") or Path()).num_steps <= 20


def test_files_are_private_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loop = make_loop(recorder_steps=10)
    paths = {loop.recorder.save() for _ in range(3 * MAX_FILES)}
    assert len(paths) == MAX_FILES
    for path in paths:
        assert path is not None and path.is_file()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    loop = make_loop(recorder_steps=0)
    loop.submit(make_request(3, 3))
    loop.drain()
    assert loop.recorder.save(tmp_path / "dump.json") is None
