"""An engine that does not fit is a miss with a one-line reason, and never half a file (CASES C52)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from trtbuild.engine.engine_store import EngineStore
from trtbuild.engine.locks import build_lock
from trtdecode.executor.engine_files import miss_reason
from trtdecode.executor.engine_steps import STEPS_FILE, EngineFile, EngineStep, EngineSteps, TokenProfile, write_steps

KEY = {
    "flavour": "tensorrt",
    "builder_version": "10.0.1",
    "sm": "89",
    "precision": "fp16",
    "graph": "a" * 64,
    "profiles": "1..8..64",
    "recipe": "plain",
    "calibration": "none",
}
CONTENT = bytes(range(256)) * 8


def record(directory: Path, files: dict[str, EngineFile]) -> None:
    """Writes segments.json for these engines."""
    write_steps(
        directory,
        EngineSteps(
            precision="fp16",
            sm=89,
            flavour="tensorrt",
            builder_version="10.0.1",
            source_graph="f32",
            profiles=(TokenProfile("decode", 1, 8, 64),),
            steps=tuple(EngineStep(name, ("x",), ("y",), "T") for name in files),
            tensors={},
            output="y",
            engines=files,
        ),
    )


@pytest.fixture
def built(tmp_path: Path) -> tuple[Path, str]:
    """A folder with one engine and its record; the engine's file name."""
    store = EngineStore(tmp_path)
    name, found, reason = store.find("segment_000", KEY)
    assert (found, reason) == (None, "not built yet")
    record(tmp_path, {name: store.write(name, CONTENT, KEY)})
    return tmp_path, name


def test_the_unchanged_case_hits(built: tuple[Path, str]) -> None:
    directory, name = built
    found_name, found, reason = EngineStore(directory).find("segment_000", KEY)
    assert (found_name, reason) == (name, None)
    assert found is not None
    assert found.num_bytes == len(CONTENT)
    assert sorted(path.name for path in directory.iterdir()) == sorted([name, STEPS_FILE])


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("builder_version", "10.9.0", "builder_version is 10.0.1, now 10.9.0"),
        ("flavour", "tensorrt-rtx", "flavour is tensorrt, now tensorrt-rtx"),
        ("sm", "90", "sm is 89, now 90"),
        ("precision", "fp8", "precision is fp16, now fp8"),
        ("graph", "b" * 64, "graph is aaaaaaaaaaaa, now bbbbbbbbbbbb"),
        ("profiles", "1..8..32", "profiles is 1..8..64, now 1..8..32"),
        ("recipe", "mixed", "recipe is plain, now mixed"),
        ("calibration", "c" * 64, "calibration is none, now cccccccccccc"),
    ],
)
def test_each_difference_is_a_miss_that_names_both_sides(
    built: tuple[Path, str], field: str, value: str, reason: str
) -> None:
    directory, name = built
    changed = {**KEY, field: value}
    new_name, found, told = EngineStore(directory).find("segment_000", changed)
    assert (found, told) == (None, reason)
    assert new_name != name  # the rebuild goes to a new file


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(b""), "file is empty (0 bytes)"),
        (lambda path: path.write_bytes(CONTENT[:100]), "file has 100 bytes of 2048"),
        (lambda path: path.write_bytes(b"\x01" + CONTENT[1:]), "file has changed (sha256 differs)"),
        (lambda path: path.unlink(), "file is missing"),
    ],
)
def test_a_damaged_file_is_a_miss(built: tuple[Path, str], damage: object, reason: str) -> None:
    directory, name = built
    damage(directory / name)  # type: ignore[operator]
    assert EngineStore(directory).find("segment_000", KEY)[1:] == (None, reason)


def test_missing_or_unreadable_metadata_is_a_miss(built: tuple[Path, str]) -> None:
    directory, name = built
    (directory / STEPS_FILE).write_text("{ not json")
    assert EngineStore(directory).find("segment_000", KEY)[1:] == (None, "not built yet")
    (directory / STEPS_FILE).unlink()
    assert EngineStore(directory).find("segment_000", KEY)[1:] == (None, "not built yet")
    assert miss_reason(directory, name, EngineFile("0", 1, {"flavour": "tensorrt"}), KEY) == (
        "no record of its builder_version"
    )
    assert miss_reason(directory, name, None, KEY) == "no record of it in segments.json"


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    class NotABuffer:
        pass

    store = EngineStore(tmp_path)
    with pytest.raises(TypeError):
        store.write("segment_000-0.engine", NotABuffer(), KEY)
    assert list(tmp_path.iterdir()) == []


def test_stale_engines_and_leftovers_go(built: tuple[Path, str]) -> None:
    directory, name = built
    (directory / "segment_000-old.engine").write_bytes(b"x")
    (directory / "segment_001-new.engine.77.partial").write_bytes(b"x")
    EngineStore(directory).remove_stale([name])
    assert sorted(path.name for path in directory.iterdir()) == sorted([name, STEPS_FILE])


def test_the_lock_keeps_a_second_builder_waiting(tmp_path: Path) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        def note() -> None:
            order.append("second waits")
            waiting.set()

        with build_lock(tmp_path, on_wait=note):
            order.append("second builds")

    thread = threading.Thread(target=second)
    with build_lock(tmp_path):
        thread.start()
        assert waiting.wait(30)
        order.append("first is done")
    thread.join(30)
    assert order == ["second waits", "first is done", "second builds"]
