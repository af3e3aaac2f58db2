"""The server's own counters, read from its `/metrics`."""

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
class Growth:
    """What the counters of one model gained between two scrapes."""

    before: list[Sample]
    after: list[Sample]
    model: str

    def of(self, name: str) -> float | None:
        """The difference of a counter, which starts at 0 when it appears in between; None where there is none."""
        end = total(self.after, name, self.model)
        return None if end is None else end - (total(self.before, name, self.model) or 0.0)
