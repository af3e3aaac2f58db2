"""What was seen of each request, and the figures made from it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trtdecode.errors import ConfigError

PERCENTILES = (50, 95, 99)


@dataclass(slots=True)
class Record:
    """One request as its client saw it. Times in seconds on the client's monotonic clock."""

    sent_at: float
    chunk_times: list[float] = field(default_factory=list)  # responses that carried text
    num_tokens: int = 0
    tokens_counted: bool = True  # False: the model does not tell, chunks stand in
    ended_at: float = 0.0
    text: str = ""
    error: str = ""  # "" or the kind: a gRPC status, "cancelled", "no response"
    cancelled: bool = False  # by the test itself: not an error

    @property
    def ok(self) -> bool:
        return not self.error and not self.cancelled

    @property
    def ttft(self) -> float:
        """Time to the first text; NaN without any."""
        return self.chunk_times[0] - self.sent_at if self.chunk_times else float("nan")

    @property
    def itl(self) -> float:
        """Mean time between tokens after the first; NaN below two tokens."""
        if len(self.chunk_times) < 2 or self.num_tokens < 2:
            return float("nan")
        return (self.chunk_times[-1] - self.chunk_times[0]) / (self.num_tokens - 1)

    @property
    def e2e(self) -> float:
        return self.ended_at - self.sent_at


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective: limits by figure name, such as {"ttft_p95": 0.5} in seconds or shares."""

    limits: dict[str, float]

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Reads `ttft_p95=500ms,itl_p95=50ms,error_rate=1%`.

        Raises:
            ConfigError: naming the part that is not a limit.
        """
        limits = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            match = re.fullmatch(r"((?:ttft|itl|e2e)_p(?:50|95|99)|error_rate)\s*=\s*([0-9.]+)\s*(ms|s|%)", part)
            if not match or (match[1] == "error_rate") != (match[3] == "%"):
                raise ConfigError(f"slo: got {part!r}; write ttft|itl|e2e _p50|_p95|_p99 = N ms|s, or error_rate = N %")
            limits[match[1]] = float(match[2]) * {"ms": 1e-3, "s": 1.0, "%": 1e-2}[match[3]]
        return cls(limits)

    def misses(self, figures: dict[str, Any]) -> list[str]:
        """One sentence for each limit that the figures of a level do not keep; a figure never measured is a miss."""
        found = []
        for name, limit in self.limits.items():
            value = figures.get(name)
            if value is None or not value <= limit:
                found.append(f"{name} is {value if value is None else f'{value:.4g}'}, limit {limit:.4g}")
        return found

    def kept_by(self, record: Record) -> bool:
        """Whether one request is good: it succeeded within every latency limit (percentile names aside)."""
        measured = {"ttft": record.ttft, "itl": record.itl, "e2e": record.e2e}
        for name, limit in self.limits.items():
            value = measured.get(name.split("_")[0])
            if value is not None and value > limit:  # NaN (one token has no ITL) is not above anything
                return False
        return record.ok


def summarise(records: Sequence[Record], duration: float, slo: Slo) -> dict[str, Any]:
    """The figures of one load level; latencies in seconds, rates a second.

    Latencies are over successful requests only; cancelled ones count as sent, neither ok nor error.
    """
    good = [record for record in records if record.ok]
    errors = Counter(record.error for record in records if record.error)
    counted = [record for record in records if not record.cancelled]
    figures: dict[str, Any] = {
        "requests": len(records),
        "ok": len(good),
        "cancelled": sum(record.cancelled for record in records),
        "errors": dict(errors),
        "error_rate": sum(errors.values()) / len(counted) if counted else 0.0,
        "duration_s": duration,
        "output_tokens": sum(record.num_tokens for record in records),
        "chunks": sum(len(record.chunk_times) for record in records),
        "tokens_counted": all(record.tokens_counted for record in records),
        "requests_per_s": len(good) / duration,
        "tokens_per_s": sum(record.num_tokens for record in records) / duration,
        "goodput_per_s": sum(slo.kept_by(record) for record in records) / duration,
        "good_share": sum(slo.kept_by(record) for record in counted) / len(counted) if counted else 0.0,
    }
    for name in ("ttft", "itl", "e2e"):
        values = np.array([getattr(record, name) for record in good])
        values = values[np.isfinite(values)]
        for percentile in PERCENTILES:
            figures[f"{name}_p{percentile}"] = float(np.percentile(values, percentile)) if len(values) else None
    return figures
