"""Values that replace what a checkpoint's config says, and proof that someone read them.

A key that no family reads would be ignored in silence; here it is an error that lists the keys that were read.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from trtdecode.errors import ConfigError


class TrackedConfig(Mapping[str, Any]):
    """A config that remembers which of its keys were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def override(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> TrackedConfig:
    """The config with values replaced. A dot descends: "rope_scaling.factor".

    Raises:
        ConfigError: a dotted key goes through something that is not an object.
    """
    values = copy.deepcopy(dict(config))
    for key, value in overrides.items():
        *path, last = key.split(".")
        place = values
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--set {key}: {part!r} is {place!r} in the config, not an object; set it as a whole")
        place[last] = value
    return TrackedConfig(values)


def check_read(config: TrackedConfig, overrides: Mapping[str, Any]) -> None:
    """Raises ConfigError for a replaced key that nothing has read."""
    for key in overrides:
        if key.split(".")[0] not in config.read:
            raise ConfigError(
                f"--set {key}: nothing in this model reads it; keys that are read: {', '.join(sorted(config.read))}"
            )


def parse_setting(text: str) -> tuple[str, Any]:
    """Key and value of "KEY=VALUE"; the value is JSON, or the text itself where it is not.

    Raises:
        ConfigError: no "=" or no key.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {text}: not of the form KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
