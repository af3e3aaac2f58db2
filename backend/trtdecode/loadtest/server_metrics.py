"""The server's own counters: what the client's figures must agree with."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of Prometheus text."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse(text: str) -> list[Sample]:
    """Samples of a Prometheus text; comments and blank lines are skipped."""
    samples = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and not line.startswith("#"):
            samples.append(Sample(match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])))
    return samples


def scrape(url: str, timeout: float = 5.0) -> list[Sample]:
    """Reads a `/metrics` address. Raises OSError when it does not answer."""
    with urllib.request.urlopen(url, timeout=timeout) as response:
        return parse(response.read().decode())


def total(samples: list[Sample], name: str, model: str) -> float | None:
    """Sum over all versions and instances of one model; None when the server has no such metric for it."""
    values = [sample.value for sample in samples if sample.name == name and sample.labels.get("model") == model]
    return sum(values) if values else None


@dataclass(frozen=True, slots=True)
class Agreement:
    """One count, as the client and as the server saw it."""

    what: str
    client: float
    server: float | None  # None: the server has no such counter

    @property
    def holds(self) -> bool:
        return self.server is None or self.client == self.server


def compare(before: list[Sample], after: list[Sample], model: str, counts: Mapping[str, float]) -> list[Agreement]:
    """Differences of counters over a run beside the client's counts.

    Args:
        counts: metric name -> what the client counted.
    """
    found = []
    for name, client in counts.items():
        end = total(after, name, model)
        found.append(Agreement(name, client, None if end is None else end - (total(before, name, model) or 0.0)))
    return found
