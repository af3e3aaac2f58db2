"""How close real serving comes to the bound: fitted to a bench, never assumed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from trtdecode.errors import ConfigError
from trtdecode.plan.capacity import Model, bounds
from trtdecode.plan.devices import Device

#: Used when no bench is given; the report says that it is an assumption.
ASSUMED_EFFICIENCY = 0.6


def fit_efficiency(
    bench: Path, system: str, model: Model, device: Device, precision: str, kv_precision: str, context: int
) -> float:
    """Measured over bound, as the geometric mean over the concurrencies of one system in a bench JSON.

    Args:
        bench: output of `scripts/bench serving --json FILE`.
        system: key under `systems`, such as "trtdecode-triton".

    Raises:
        ConfigError: not a bench JSON, the system is not in it, or it has no decode figures.
    """
    try:
        raw: dict[str, Any] = json.loads(bench.read_text("utf-8"))
        systems: dict[str, Any] = raw["systems"]
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{bench}: not a bench JSON ({error}); make one with `scripts/bench serving --json`"
        ) from error
    if system not in systems:
        raise ConfigError(f"{bench}: no system {system!r}; it holds {', '.join(sorted(systems))}")
    logs = [
        math.log(
            row["decode_tokens_per_s"]
            / bounds(model, device, precision, kv_precision, context, int(n)).decode_tokens_per_s
        )
        for n, row in systems[system].items()
        if n.isdigit() and isinstance(row, dict) and row.get("decode_tokens_per_s")
    ]
    if not logs:
        raise ConfigError(
            f"{bench}: system {system!r} has no decode_tokens_per_s; run `scripts/bench serving` to its end"
        )
    return math.exp(sum(logs) / len(logs))
