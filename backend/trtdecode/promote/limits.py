"""The gates' limits, read from TOML into one frozen object a gate."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trtdecode.errors import ConfigError

DEFAULT_LIMITS = Path(__file__).with_name("limits.toml")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ParityLimits:
    max_mean_abs_error: float
    max_kl_divergence: float
    min_argmax_agreement: float


@dataclass(frozen=True, slots=True)
class ContractLimits:
    timeout_s: float


@dataclass(frozen=True, slots=True)
class LoadLimits:
    requests: int
    concurrency: int
    output_tokens: int
    max_ttft_p95_ratio: float
    min_tokens_per_s_ratio: float
    max_error_rate: float
    slo: str


@dataclass(frozen=True, slots=True)
class LeakLimits:
    requests: int
    cancel_fraction: float
    max_rss_growth_bytes: int
    max_blocks_left: int
    max_shm_growth_bytes: int


@dataclass(frozen=True, slots=True)
class GoldenLimits:
    min_prompts: int


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    max_share_of_free: float


@dataclass(frozen=True, slots=True)
class Limits:
    parity: ParityLimits
    contract: ContractLimits
    load: LoadLimits
    leak: LeakLimits
    golden: GoldenLimits
    memory: MemoryLimits


_SECTIONS: dict[str, type[Any]] = {
    "parity": ParityLimits,
    "contract": ContractLimits,
    "load": LoadLimits,
    "leak": LeakLimits,
    "golden": GoldenLimits,
    "memory": MemoryLimits,
}


def read_limits(path: Path | None = None) -> Limits:
    """The shipped limits, with what a file of the same form changes.

    Raises:
        ConfigError: not TOML, an unknown section or key, or a value of another type.
    """
    shipped = _read(DEFAULT_LIMITS)
    changes = _read(path) if path else {}
    unknown = changes.keys() - _SECTIONS.keys()
    if unknown:
        raise ConfigError(f"{path}: section {sorted(unknown)[0]!r} is not known; there are {', '.join(_SECTIONS)}")
    return Limits(
        **{name: _section(path, name, kind, shipped[name], changes.get(name, {})) for name, kind in _SECTIONS.items()}
    )


def _section(path: Path | None, name: str, kind: type[T], shipped: dict[str, Any], changes: dict[str, Any]) -> T:
    for key, value in changes.items():
        if key not in shipped:
            raise ConfigError(f"{path}: [{name}] {key} is not known; it may hold {', '.join(shipped)}")
        text = isinstance(shipped[key], str)
        if isinstance(value, bool) or text != isinstance(value, str) or not isinstance(value, str | int | float):
            raise ConfigError(f"{path}: [{name}] {key} is {value!r}; must be {'a text' if text else 'a number'}")
    return kind(**{**shipped, **changes})


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not readable as limits ({error})") from error


def as_dict(limits: Limits) -> dict[str, Any]:
    """For the record of a promotion."""
    return dataclasses.asdict(limits)
