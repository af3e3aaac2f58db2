"""Limits: shipped, changed, mistyped."""

import tomllib
from pathlib import Path

import pytest
from trtdecode.errors import ConfigError
from trtdecode.promote.limits import DEFAULT_LIMITS, as_dict, read_limits


def test_every_shipped_limit_is_read() -> None:
    assert as_dict(read_limits()) == tomllib.loads(DEFAULT_LIMITS.read_text())


def test_a_file_changes_only_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("[load]\nrequests = 5\n")
    shipped, changed = as_dict(read_limits()), as_dict(read_limits(file))
    assert changed["load"].pop("requests") == 5
    shipped["load"].pop("requests")
    assert changed == shipped


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[laod]\n", "section 'laod' is not known"),
        ("[load]\nrequest = 5\n", r"\[load\] request is not known"),
        ('[load]\nrequests = "5"\n', r"\[load\] requests is '5'; must be a number"),
        ("[load]\nslo = 5\n", r"\[load\] slo is 5; must be a text"),
        ("[load]\nrequests = true\n", "must be a number"),
        ("[load\n", "not readable"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_limits(file)
