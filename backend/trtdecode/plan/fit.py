"""How close real serving comes to the bound: fitted to a bench, never assumed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from trtdecode.errors import ConfigError
from trtdecode.plan.capacity import Model, bounds
from trtdecode.plan.devices import Device
from trtdecode.plan.encoder_capacity import Encoder, batch_seconds

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
    systems = _section(bench, "systems", "serving")
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
    return _geometric_mean(logs)


def fit_encoder_efficiency(bench: Path, encoder: Encoder, device: Device, precision: str) -> float:
    """Measured over bound, as the geometric mean over the lengths of texts in a bench JSON, batched by Triton.

    Args:
        bench: output of `scripts/bench encoder --json FILE`.

    Raises:
        ConfigError: not such a JSON.
    """
    logs = []
    for tokens, row in _section(bench, "tokens", "encoder").items():
        try:
            measured, batch = row["batched"]["texts_per_s"], row["batched"]["mean_batch_size"]
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"{bench}: tokens.{tokens} has no {error}; make one with `scripts/bench encoder --json`"
            ) from error
        bound = batch / batch_seconds(encoder, device, precision, batch, int(tokens))
        logs.append(math.log(measured / bound))
    if not logs:
        raise ConfigError(f"{bench}: tokens is empty; run `scripts/bench encoder` to its end")
    return _geometric_mean(logs)


def _section(bench: Path, key: str, kind: str) -> dict[str, Any]:
    try:
        section = json.loads(bench.read_text("utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{bench}: not a bench JSON ({error}); make one with `scripts/bench {kind} --json`"
        ) from error
    if not isinstance(section, dict):
        raise ConfigError(f"{bench}: {key} is no object; make one with `scripts/bench {kind} --json`")
    return section


def _geometric_mean(logs: list[float]) -> float:
    return math.exp(sum(logs) / len(logs))
