"""The batch's input and output files: what is refused, and how a cut-off run is taken up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trtdecode.errors import ConfigError
from trtdecode.offline.files import BatchLine, ResultFile, read_requests


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def result(custom_id: str, status: int = 200) -> dict[str, object]:
    return {"id": "x", "custom_id": custom_id, "response": {"status_code": status, "body": {}}, "error": None}


def test_reads_lines_and_skips_blank_ones(tmp_path: Path) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m"}}
    path = write_lines(tmp_path / "in", line, "", "   ", {"custom_id": "b"})
    assert list(read_requests(path)) == [
        BatchLine(1, "a", "POST", "/v1/completions", {"model": "m"}),
        BatchLine(4, "b", "POST", "", None),
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], r"in:1: not JSON"),
        (["[1]"], r"in:1: must be an object with custom_id"),
        ([{"custom_id": 5}], r"in:1: custom_id: got 5; must be a non-empty string"),
        ([{"custom_id": ""}], r"in:1: custom_id: got ''"),
        ([{"custom_id": "a"}, {"custom_id": "b"}, {"custom_id": "a"}], r"in:3: custom_id 'a' is also on line 1"),
        (["[" * 100_000], r"in:1: not JSON"),
    ],
)
def test_refuses_what_cannot_be_trusted(tmp_path: Path, lines: list[object], message: str) -> None:
    path = write_lines(tmp_path / "in", *lines)
    with pytest.raises(ConfigError, match=message):
        list(read_requests(path))


def test_missing_and_undecodable_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: cannot be read \(No such file or directory\)"):
        list(read_requests(tmp_path / "nowhere"))
    (tmp_path / "latin").write_bytes(b'{"custom_id": "\xe9"}\n')
    with pytest.raises(ConfigError, match="not UTF-8"):
        list(read_requests(tmp_path / "latin"))


def test_appends_and_takes_up(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with ResultFile(path) as results:
        assert results.done == set()
        results.append(result("a"))
    with ResultFile(path) as results:
        assert results.done == {"a"}
        results.append(result("b", 400))
    assert [json.loads(line)["custom_id"] for line in path.read_text().splitlines()] == ["a", "b"]


def test_each_result_is_in_the_file_at_once(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "out") as results:
        results.append(result("a"))
        assert json.loads((tmp_path / "out").read_text())["custom_id"] == "a"


def test_drops_a_half_written_line_and_our_failures(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "out", result("a"), result("b", 503), result("c", 400))
    with path.open("a") as file:
        file.write('{"custom_id": "d", "resp')
    with ResultFile(path) as results:
        assert results.done == {"a", "c"}
    assert [json.loads(line)["custom_id"] for line in path.read_text().splitlines()] == ["a", "c"]


def test_never_writes_into_another_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "notes", {"my": "data"})
    with pytest.raises(ConfigError, match="notes:1: not a batch result; choose another output file"):
        ResultFile(path)
    assert path.read_text() == '{"my": "data"}\n'
