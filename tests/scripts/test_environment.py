"""The stamp that makes a second run quick, and what a failed step tells the user."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import environment
import progress
import pytest


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with a working `.venv` that was never stamped."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "VENV_PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(environment, "CACHE", tmp_path / ".cache")
    monkeypatch.setattr(environment, "_STAMP", tmp_path / ".venv" / "stamp.json")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "native").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    return tmp_path


class RecordingProgress(progress.Progress):
    """Runs nothing and remembers what it was asked to run."""

    def __init__(self, log_file: Path) -> None:
        super().__init__(log_file)
        self.commands: list[list[str]] = []

    def run(self, command: object, **options: object) -> None:
        assert isinstance(command, list)
        self.commands.append(command)
        if command[1:3] == ["-m", "venv"]:
            Path(command[3]).mkdir()


def installs(clone: Path, *extras: str) -> list[str]:
    """What `ensure` hands to pip's --editable, in order."""
    recorder = RecordingProgress(clone / "log")
    environment.ensure(extras, recorder)
    return [command[-1] for command in recorder.commands]


def test_installs_once(clone: Path) -> None:
    assert installs(clone) == [str(clone)]
    assert installs(clone) == []


def test_extras_add_up(clone: Path) -> None:
    assert installs(clone, "check") == [f"{clone}[check]"]
    assert installs(clone, "test") == [f"{clone}[check,test]"]
    assert installs(clone, "check") == []
    assert installs(clone) == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ("pyproject.toml", "[project]\ndependencies = ['numpy']\n"),
        ("pyproject.toml", "[project]\n[tool.scikit-build]\nbuild-dir = 'out'\n"),
        ("CMakeLists.txt", "project(x)\n"),
        ("native/sampler.cpp", "int x;\n"),
    ],
)
def test_installs_again_when_an_input_changes(clone: Path, changed: str, text: str) -> None:
    installs(clone, "test")
    (clone / changed).write_text(text)
    assert installs(clone) == [f"{clone}[test]"]


def test_settings_of_linters_need_no_install(clone: Path) -> None:
    installs(clone)
    (clone / "pyproject.toml").write_text("[project]\n[tool.ruff]\nline-length = 120\n")
    assert installs(clone) == []


def test_sources_are_editable_and_need_no_install(clone: Path) -> None:
    installs(clone)
    (clone / "backend").mkdir()
    (clone / "backend" / "loop.py").write_text("changed\n")
    assert installs(clone) == []


@pytest.mark.parametrize("stamp", ["", "{", "[]", '{"digest": 1, "extras": "test"}'])
def test_damaged_stamp_is_no_stamp(clone: Path, stamp: str) -> None:
    (clone / ".venv" / "stamp.json").write_text(stamp)
    assert installs(clone, "test") == [f"{clone}[test]"]


def test_interrupted_install_leaves_no_stamp(clone: Path) -> None:
    installs(clone)
    (clone / "pyproject.toml").write_text("[project]\nname = 'other'\n")

    class Interrupted(RecordingProgress):
        def run(self, command: object, **options: object) -> None:
            raise progress.StepFailed("no network")

    with pytest.raises(progress.StepFailed):
        environment.ensure([], Interrupted(clone / "log"))
    assert not (clone / ".venv" / "stamp.json").exists()


def test_venv_of_a_removed_python_is_made_again(clone: Path) -> None:
    installs(clone)
    (clone / ".venv" / "bin" / "python").unlink()
    (clone / ".venv" / "bin" / "python").symlink_to("/nowhere/python3.11")
    recorder = RecordingProgress(clone / "log")
    environment.ensure([], recorder)
    assert recorder.commands[0] == [sys.executable, "-m", "venv", str(clone / ".venv")]


def test_stamp_is_readable(clone: Path) -> None:
    installs(clone, "test")
    stamp = json.loads((clone / ".venv" / "stamp.json").read_text())
    assert stamp == {"digest": environment.inputs_digest(), "extras": ["test"]}


def test_failed_step_shows_the_end_of_its_output_and_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps = progress.Progress(tmp_path / "setup.log")
    program = "for i in range(40): print('line', i)\nraise SystemExit(3)"
    with pytest.raises(progress.StepFailed) as caught, steps.step("installing"):
        steps.run([sys.executable, "-c", program], hint="is the index reachable?")
    lines = str(caught.value).splitlines()
    assert lines[0] == "line 28"
    assert lines[-2:] == [f"exit status 3; whole output: {tmp_path / 'setup.log'}", "is the index reachable?"]
    assert "line 0\n" in (tmp_path / "setup.log").read_text()
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "installing failed after" in captured.err
    assert captured.err.count("\n") == 1
