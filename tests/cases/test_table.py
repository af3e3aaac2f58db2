"""docs/cases.md: every case has a row, and every test that a row names exists."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = {
    *("C01", "C03", "C05", "C07", "C09", "C11", "C13", "C16", "C18", "C20", "C21", "C23", "C25", "C27", "C29", "C31"),
    *("C32", "C33", "C35", "C37", "C40", "C42", "C44", "C46", "C48", "C50", "C52"),
}


def rows() -> dict[str, list[str]]:
    """Case -> the tests named, as path::pattern."""
    found = {}
    for line in (ROOT / "docs" / "cases.md").read_text("utf-8").splitlines():
        if match := re.match(r"\| (C\d\d) ", line):
            found[match[1]] = re.findall(r"`(tests/[^`]+::[^`]+)`", line)
    return found


@cache
def functions_of(path: str) -> tuple[str, ...]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return tuple(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def named(pattern: str) -> list[str]:
    path, name = pattern.split("::")
    return [f"{path}::{test}" for test in functions_of(path) if fnmatch(test, name)]


def test_every_case_has_a_row() -> None:
    assert set(rows()) == CASES


@pytest.mark.parametrize("case", sorted(CASES))
def test_a_case_and_its_neighbours_exist(case: str) -> None:
    """The case itself and at least two neighbours; a parametrised test is often all of them."""
    patterns = rows()[case]
    assert [pattern for pattern in patterns if not named(pattern)] == []
    found = [test for pattern in patterns for test in named(pattern)]
    is_parametrised = any("parametrize" in (ROOT / test.split("::")[0]).read_text("utf-8") for test in found)
    assert len(found) >= 3 or is_parametrised


def test_every_test_of_a_case_is_in_the_table() -> None:
    listed = {test for patterns in rows().values() for pattern in patterns for test in named(pattern)}
    for path in sorted((ROOT / "tests" / "cases").glob("test_?_*.py")):
        relative = str(path.relative_to(ROOT))
        tests = {f"{relative}::{name}" for name in functions_of(relative) if name.startswith("test_")}
        assert tests <= listed, f"not in docs/cases.md: {sorted(tests - listed)}"
