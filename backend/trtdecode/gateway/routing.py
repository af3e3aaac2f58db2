"""Routing rules: which served model answers a request, from a TOML file read at start.

[[rule]]                      # the first rule that matches decides
model = "assistant"           # the name the client asks for
min_prompt_chars = 8000       # optional bounds
max_prompt_chars = 0          # 0: none
callers = ["4f1c0a9be2d7"]    # optional: digests of API keys, as in the access log
target = "smollm2-long"

[[split]]                     # A/B: a share of the users, always the same ones
model = "assistant"
targets = { smollm2 = 0.5, smollm2-int8 = 0.5 }
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtdecode.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Rule:
    model: str
    target: str
    min_prompt_chars: int = 0
    max_prompt_chars: int = 0
    callers: tuple[str, ...] = ()

    def matches(self, model: str, num_chars: int, caller: str) -> bool:
        return (
            model == self.model
            and num_chars >= self.min_prompt_chars
            and (not self.max_prompt_chars or num_chars <= self.max_prompt_chars)
            and (not self.callers or caller in self.callers)
        )


@dataclass(frozen=True, slots=True)
class Split:
    model: str
    targets: dict[str, float]

    def choose(self, user: str) -> str:
        """The same user always gets the same target; shares hold over many users."""
        point = int.from_bytes(hashlib.sha256(f"{self.model}\0{user}".encode()).digest()[:8], "big") / 2**64
        for target, share in self.targets.items():
            point -= share
            if point < 0:
                return target
        return next(reversed(self.targets))  # rounding: the shares' sum is 1 but for the last bit


@dataclass(frozen=True, slots=True)
class Router:
    """All rules. Without any, a request goes to the model it names."""

    rules: tuple[Rule, ...] = ()
    splits: dict[str, Split] = field(default_factory=dict)

    def route(self, model: str, num_chars: int, caller: str, user: str) -> tuple[str, str]:
        """(served model, why): why is "", "rule N" or "split"."""
        for number, rule in enumerate(self.rules, 1):
            if rule.matches(model, num_chars, caller):
                return rule.target, f"rule {number}"
        if model in self.splits:
            return self.splits[model].choose(user or caller), "split"
        return model, ""


def read_router(path: Path | None) -> Router:
    """Reads the file.

    Raises:
        ConfigError: naming the file and the rule or split that is wrong.
    """
    if path is None:
        return Router()
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not readable as routing rules ({error})") from error
    unknown = raw.keys() - {"rule", "split"}
    if unknown:
        raise ConfigError(f"{path}: {sorted(unknown)[0]!r} is not known; it may hold [[rule]] and [[split]]")
    rules = []
    for number, entry in enumerate(raw.get("rule", []), 1):
        try:
            rules.append(Rule(**{**entry, "callers": tuple(entry.get("callers", ()))}))
        except TypeError as error:
            raise ConfigError(f"{path}: rule {number}: {error}") from error
    splits = {}
    for number, entry in enumerate(raw.get("split", []), 1):
        targets = entry.get("targets")
        if not isinstance(targets, dict) or abs(sum(targets.values()) - 1) > 1e-9 or "model" not in entry:
            raise ConfigError(f"{path}: split {number}: needs model, and targets whose shares add up to 1")
        splits[entry["model"]] = Split(entry["model"], targets)
    return Router(tuple(rules), splits)
