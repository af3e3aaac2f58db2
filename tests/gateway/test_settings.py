"""Settings and API keys."""

from pathlib import Path

import pytest
from trtdecode.errors import ConfigError
from trtdecode.gateway.settings import KEYS_VARIABLE, GatewaySettings, read_api_keys


def test_keys_come_from_file_and_environment_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# team\n{'a' * 16}\n\n{'b' * 16}\n")
    monkeypatch.setenv(KEYS_VARIABLE, f"{'c' * 20}, {'a' * 16}")
    assert read_api_keys(file) == ("c" * 20, "a" * 16, "b" * 16)


@pytest.mark.parametrize(("text", "message"), [("short\n", "5 characters"), ("# none\n", "holds no key")])
def test_weak_or_missing_keys_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_api_keys(file)
    with pytest.raises(ConfigError, match="not readable"):
        read_api_keys(tmp_path / "absent")


@pytest.mark.parametrize(
    ("field", "value"),
    [("requests_per_minute", -1), ("max_body_bytes", 0), ("semantic_cache_threshold", 1.1), ("triton_urls", ())],
)
def test_wrong_settings_name_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        GatewaySettings(**{field: value})
