"""The regression guard: what is slower, what only drifted."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_compare", ROOT / "scripts" / "benchlib" / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(path: Path, **systems: dict[str, float]) -> Path:
    table = {name: {n: {"decode_tokens_per_s": rate} for n, rate in rates.items()} for name, rates in systems.items()}
    for figures in table.values():
        figures["about"] = {}  # type: ignore[assignment]
    path.write_text(json.dumps({"systems": table}))
    return path


def test_slower_than_the_tolerance_is_status_1(compare: ModuleType, tmp_path: Path) -> None:
    base = write(tmp_path / "base.json", ours={"1": 100, "8": 400})
    same = write(tmp_path / "same.json", ours={"1": 86, "8": 500})
    slow = write(tmp_path / "slow.json", ours={"1": 84, "8": 500})
    arguments = ["--system", "ours"]
    assert compare.main([str(base), str(same), *arguments]) == 0
    assert compare.main([str(base), str(slow), *arguments]) == 1
    assert compare.main([str(base), str(slow), *arguments, "--tolerance", "0.2"]) == 0


def test_what_drifts_with_the_reference_is_not_slower(compare: ModuleType, tmp_path: Path) -> None:
    base = write(tmp_path / "base.json", ours={"8": 400}, theirs={"8": 200})
    drifted = write(tmp_path / "new.json", ours={"8": 300}, theirs={"8": 150})
    arguments = [str(base), str(drifted), "--system", "ours"]
    assert compare.main(arguments) == 1
    assert compare.main([*arguments, "--reference", "theirs"]) == 0


def test_runs_without_a_common_figure_are_an_error(compare: ModuleType, tmp_path: Path) -> None:
    base = write(tmp_path / "base.json", ours={"1": 100})
    other = write(tmp_path / "other.json", ours={"8": 100})
    assert compare.main([str(base), str(other), "--system", "ours"]) == 2
    assert compare.main([str(base), str(other), "--system", "absent"]) == 2
