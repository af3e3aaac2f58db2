"""What was seen of one model in some seconds: gauges as means and peaks, counters as differences."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtdecode.errors import ConfigError
from trtdecode.loadtest.server_metrics import Sample, parse

#: Labels of DCGM and of Triton's machine metrics carry no model: these are read as they are.
MACHINE_METRICS = ("nv_cpu_utilization", "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of the metrics addresses. Times in seconds, on any clock."""

    at: float
    samples: list[Sample]


class Readings:
    """One model's metrics over a window.

    Args:
        scrapes: in order of time, at least two.
        model: as in the `model` label.
        log_lines: of the server's log, as far as it was given.
    """

    def __init__(self, scrapes: Sequence[Scrape], model: str, log_lines: Sequence[str] = ()) -> None:
        if len(scrapes) < 2:
            raise ConfigError(f"{len(scrapes)} scrape(s) of the metrics; a diagnosis needs at least two")
        self.model = model
        self.log_lines = log_lines
        self.seconds = scrapes[-1].at - scrapes[0].at
        self._sums = [_sums(scrape.samples, model) for scrape in scrapes]

    @property
    def is_encoder(self) -> bool:
        """Encoders have steps and no KV cache."""
        return "trtdecode_kv_blocks_total" not in self._sums[-1]

    def gauge(self, name: str) -> list[float]:
        """The gauge at every scrape; scrapes without it are left out."""
        return [sums[name] for sums in self._sums if name in sums]

    def mean(self, name: str) -> float:
        """Mean of a gauge; 0 where it was never there."""
        values = self.gauge(name)
        return sum(values) / len(values) if values else 0.0

    def share(self, name: str, is_so: Callable[[float], bool]) -> float:
        """Share of the scrapes at which a gauge was so; 0 where it was never there."""
        values = self.gauge(name)
        return sum(map(is_so, values)) / len(values) if values else 0.0

    def gain(self, name: str) -> float:
        """What a counter gained in the window. One that fell started afresh: its end counts."""
        first, last = self._sums[0].get(name, 0.0), self._sums[-1].get(name, 0.0)
        return last - first if last >= first else last

    def last(self, name: str) -> float:
        """A counter since the model was loaded."""
        return self._sums[-1].get(name, 0.0)

    def histogram_mean(self, name: str) -> float:
        """Mean of a histogram's new observations; 0 without any."""
        count = self.gain(f"{name}_count")
        return self.gain(f"{name}_sum") / count if count else 0.0


def models(scrape: Scrape) -> list[str]:
    """Models that our backend serves, encoders too."""
    return sorted({s.labels["model"] for s in scrape.samples if s.name == "trtdecode_steps_total"})


def watch(read: Callable[[], str], seconds: float, interval: float) -> list[tuple[float, str]]:
    """Texts of the metrics every `interval` seconds, at least two of them."""
    start = time.monotonic()
    texts = [(0.0, read())]
    while len(texts) < 2 or time.monotonic() - start < seconds:
        time.sleep(interval)
        texts.append((time.monotonic() - start, read()))
    return texts


def scrapes_of(texts: Sequence[tuple[float, str]]) -> list[Scrape]:
    return [Scrape(at, parse(text)) for at, text in texts]


def write_recording(path: Path, texts: Sequence[tuple[float, str]]) -> None:
    """Keeps what was read, without comments and histogram buckets, for somebody else to diagnose."""

    def short(text: str) -> str:
        return "\n".join(line for line in text.splitlines() if not line.startswith("#") and "_bucket{" not in line)

    path.write_text(json.dumps([[round(at, 3), short(text)] for at, text in texts], indent=0) + "\n", "utf-8")


def read_recording(path: Path) -> list[tuple[float, str]]:
    """What `write_recording` wrote.

    Raises:
        ConfigError: not readable as a recording.
    """
    try:
        return [(float(at), str(text)) for at, text in json.loads(path.read_text("utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: not readable as a recording of `trtdecode doctor --record` ({error})") from error


def _sums(samples: Sequence[Sample], model: str) -> dict[str, float]:
    """Values by metric name, summed over versions, instances and labels of one model."""
    found: dict[str, float] = {}
    for sample in samples:
        if sample.labels.get("model") == model:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
            if "error" in sample.labels:
                found[f"{sample.name}:{sample.labels['error']}"] = sample.value
        elif sample.name in MACHINE_METRICS:
            found[sample.name] = max(found.get(sample.name, 0.0), sample.value)
    return found
