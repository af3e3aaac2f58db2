"""What a build may be asked for and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtbuild.engine.layer_report import Check
from trtbuild.quantize.quality import Quality

#: Raised whenever the same inputs would give other engines than before: older ones are then cache misses.
BUILD_VERSION = 2

Progress = Callable[[str, int, int], None]  # (stage, done, total)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What a build may be asked for besides precision, SM and flavour. Limits are those of the serving config."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    workspace_bytes: int = 0  # 0: the builder's default
    verify: bool = True  # perplexity and KL divergence against float32, with limits
    allow_unfused: bool = False  # report a missing fusion instead of failing
    limits: Mapping[str, Mapping[str, float]] | None = None  # default: the shipped ones
    timing_cache_root: Path | None = None  # default: the user's cache folder
    calibration_texts: tuple[str, ...] = ()  # default: the shipped ones
    evaluation_texts: tuple[str, ...] = ()  # for parity; default: the shipped ones


@dataclass(slots=True)
class BuildReport:
    """What a build did."""

    directory: Path
    precision: str
    sm: int
    flavour: str
    builder_version: str
    built: dict[str, str] = field(default_factory=dict)  # segment -> why it was built
    reused: list[str] = field(default_factory=list)
    num_bytes: int = 0  # of all engines
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    schemes: dict[str, str] = field(default_factory=dict)  # linear layer -> scheme, of what was prepared
    quality: Quality | None = None
    layers_path: Path | None = None
