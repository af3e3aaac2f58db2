"""What a precision costs: perplexity and KL divergence against float32 on the shipped text, and the limits of both."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from trtdecode.errors import BuildError, ConfigError
from trtdecode.executor.base import Batch

from trtbuild.verify.parity import PARITY_FILE, Logits, compare_logits

REFERENCE = "f32"


@dataclass(frozen=True, slots=True)
class Quality:
    """One precision against float32, over every position of the evaluation text."""

    reference: str
    candidate: str
    num_rows: int
    max_abs_error: float  # of logits
    mean_abs_error: float
    kl_divergence: float  # mean over positions of KL(reference || candidate), in nats
    argmax_agreement: float
    reference_perplexity: float
    perplexity: float

    @property
    def perplexity_ratio(self) -> float:
        return self.perplexity / self.reference_perplexity


def measure_quality(
    candidate_name: str, batches: Sequence[Batch], reference: Sequence[Logits], candidate: Sequence[Logits]
) -> Quality:
    """Compares logits [tokens, vocab] of the same prompt batches, one batch at a time: they are large."""
    pair = (REFERENCE, candidate_name)
    parts = [compare_logits(left, right, pair) for left, right in zip(reference, candidate, strict=True)]
    targets = [next_tokens(batch) for batch in batches]

    def mean(field: str) -> float:
        return float(np.average([getattr(part, field) for part in parts], weights=[part.num_rows for part in parts]))

    return Quality(
        reference=REFERENCE,
        candidate=candidate_name,
        num_rows=sum(part.num_rows for part in parts),
        max_abs_error=float(np.max([part.max_abs_error for part in parts])),  # numpy's, so that NaN stays NaN
        mean_abs_error=mean("mean_abs_error"),
        kl_divergence=mean("kl_divergence"),
        argmax_agreement=mean("argmax_agreement"),
        reference_perplexity=perplexity(reference, targets),
        perplexity=perplexity(candidate, targets),
    )


def next_tokens(batch: Batch) -> npt.NDArray[np.int64]:
    """For each row of a prompt batch the id that follows it, or -1 where the prompt ends."""
    targets = np.append(batch.input_ids[1:], -1)
    targets[batch.query_begins[1:] - 1] = -1
    return targets


def perplexity(logits: Sequence[Logits], targets: Sequence[npt.NDArray[np.int64]]) -> float:
    """exp of the mean negative log-likelihood of the targets; rows with target -1 do not count."""
    losses = []
    for rows, wanted in zip(logits, targets, strict=True):
        counted = np.flatnonzero(wanted >= 0)
        scores = rows[counted].astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        losses.append(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(counted)), wanted[counted]])
    return float(np.exp(np.concatenate(losses).mean()))


def read_limits(path: Path | None = None) -> dict[str, dict[str, float]]:
    """Limits by precision, from a file or from ours. Raises ConfigError naming file and key."""
    source = path or resources.files("trtbuild.quantize").joinpath("data", "limits.toml")
    try:
        raw: dict[str, Any] = tomllib.loads(source.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source}: not readable as limits ({error})") from error
    for precision, limits in raw.items():
        if not isinstance(limits, dict) or set(limits) != {"max_kl", "max_perplexity_ratio"}:
            raise ConfigError(f"{source}: [{precision}] must hold max_kl and max_perplexity_ratio, nothing else")
    return raw


def check_quality(quality: Quality, limits: Mapping[str, Mapping[str, float]]) -> None:
    """Raises BuildError naming the figure and its limit when a precision is beyond it."""
    limit = limits.get(quality.candidate)
    if limit is None:
        return
    figures = (
        ("KL divergence", quality.kl_divergence, limit["max_kl"]),
        ("perplexity ratio", quality.perplexity_ratio, limit["max_perplexity_ratio"]),
    )
    for name, value, largest in figures:
        if not value <= largest:  # also when it is NaN
            raise BuildError(
                f"{quality.candidate}: {name} {value:.4g} against {quality.reference} is over the limit {largest:g}; "
                "use a wider precision, keep some layers wider with --mixed, or raise the limit with --limits"
            )


def record_quality(version_dir: Path, quality: Quality) -> Path:
    """Puts the figures into `reports/parity.json`, in place of older ones of the same pair."""
    path = version_dir / "reports" / PARITY_FILE
    path.parent.mkdir(exist_ok=True)
    try:
        entries = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        entries = []
    pair = (quality.reference, f"{quality.candidate} engines")
    kept = [entry for entry in entries if (entry.get("reference"), entry.get("candidate")) != pair]
    kept.append({**dataclasses.asdict(quality), "candidate": pair[1], "perplexity_ratio": quality.perplexity_ratio})
    path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    return path
