"""What an engine folder holds: the steps that make one pass of the decoder out of engines and seam operators.

`trtdecode build` cuts the graph at its seam operators and writes `segments.json`; the TensorRT executor reads it.
A pass runs the steps in order. Values are named tensors; T is the number of tokens of the batch, S the number of rows
that need logits. Engines have one dynamic dimension each, T or (the last one, which runs on the logit rows alone) S.

    gather      hidden = embedding[input_ids]            a table lookup outside TensorRT (embedding, RoPE tables)
    engine      q, k, v, residual = segment_000(hidden)  one TensorRT engine
    seam        o = PagedAttention(q, k, v, ...)         ours
    ...
    rows        o' = o[logit_indices]                    from here on only the rows that need logits
    engine      logits = segment_030(o', residual')
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trtdecode.errors import ManifestError

STEPS_FILE = "segments.json"
TABLES_FILE = "tables.safetensors"
FORMAT_VERSION = 1

#: Element types of values, as `TensorSpec.dtype` spells them.
DTYPES = ("f32", "f16", "bf16", "fp8", "i8", "i32", "i64")

Dimension = int | str  # "T", "S" or a number


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Type and shape of one value."""

    dtype: str
    shape: tuple[Dimension, ...]


@dataclass(frozen=True, slots=True)
class TokenProfile:
    """One optimisation profile: the range of an engine's dynamic dimension. Its index is its place in the list."""

    name: str  # "decode", "prefill"
    min_tokens: int
    opt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class GatherStep:
    """`output = take(table, indices, axis)`; with axis 1 the result is transposed back to [T, width].

    Axis 1 is used where a tied table must lie as the head's matmul wants it. `scales` (a table, or "") multiplies the
    result per gathered entry: the embedding is then stored in a narrower type than `output` has.
    """

    kind: ClassVar[str] = "gather"
    table: str
    indices: str  # a graph input, i64[T]
    output: str
    axis: int = 0
    scales: str = ""


@dataclass(frozen=True, slots=True)
class RowsStep:
    """`output = input[logit_indices]`."""

    kind: ClassVar[str] = "rows"
    input: str
    output: str


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One engine. Inputs are values, or tables where the engine reads a table as a tensor (a tied embedding)."""

    kind: ClassVar[str] = "engine"
    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dimension: str  # "T" or "S": what is dynamic in this engine


@dataclass(frozen=True, slots=True)
class SeamStep:
    """A seam operator; inputs and attributes are those of its node in the graph contract."""

    kind: ClassVar[str] = "seam"
    operator: str  # "PagedAttention" or "AllReduce"
    name: str  # the node's name in the graph
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, float | int | str]


Step = GatherStep | RowsStep | EngineStep | SeamStep
_STEP_TYPES: dict[str, type[Step]] = {step.kind: step for step in (GatherStep, RowsStep, EngineStep, SeamStep)}


@dataclass(frozen=True, slots=True)
class EngineFile:
    """One built engine and what it was built from (the cache key, field by field, so that a miss can say why)."""

    sha256: str
    num_bytes: int
    key: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EngineSteps:
    """The content of `segments.json`."""

    precision: str
    sm: int
    flavour: str
    builder_version: str
    source_graph: str  # the manifest's name of the graph they were built from ("f32")
    profiles: tuple[TokenProfile, ...]
    steps: tuple[Step, ...]
    tensors: Mapping[str, TensorSpec]  # every value and table that the steps name, graph inputs and caches excepted
    output: str
    engines: Mapping[str, EngineFile]
    format_version: int = FORMAT_VERSION

    @property
    def max_tokens(self) -> int:
        """No batch may have more tokens: the engines were not built for it."""
        return max(profile.max_tokens for profile in self.profiles)

    @property
    def segment_files(self) -> tuple[str, ...]:
        """Engine files in execution order."""
        return tuple(step.file for step in self.steps if isinstance(step, EngineStep))

    def profile_for(self, num_tokens: int) -> int:
        """Index of the first profile that holds `num_tokens` (profiles are sorted by size, so the tightest).

        Raises:
            AssertionError: more tokens than any profile; the loader limits max_num_batched_tokens to `max_tokens`.
        """
        for index, profile in enumerate(self.profiles):
            if profile.min_tokens <= num_tokens <= profile.max_tokens:
                return index
        raise AssertionError(f"{num_tokens} tokens in a batch, engines hold at most {self.max_tokens}")


def write_steps(directory: Path, steps: EngineSteps) -> Path:
    """Writes `segments.json` atomically (temporary file, fsync, rename)."""
    raw = dataclasses.asdict(steps)
    raw["steps"] = [{"kind": step.kind, **entry} for step, entry in zip(steps.steps, raw["steps"], strict=True)]
    target = directory / STEPS_FILE
    partial = target.with_suffix(f".json.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(raw, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)
    return target


def read_steps(directory: Path) -> EngineSteps:
    """Reads `segments.json`.

    Raises:
        ManifestError: missing, not JSON, another format version, or a field of the wrong form.
    """
    path = directory / STEPS_FILE
    try:
        raw: dict[str, Any] = json.loads(path.read_text("utf-8"))
        version = raw["format_version"]
        if version != FORMAT_VERSION:
            raise ManifestError(f"{path}: format_version {version}, this trtdecode reads {FORMAT_VERSION}; {_REBUILD}")
        return EngineSteps(
            **{
                **raw,
                "profiles": tuple(TokenProfile(**profile) for profile in raw["profiles"]),
                "steps": tuple(_step_of(entry) for entry in raw["steps"]),
                "tensors": _each(raw["tensors"], lambda entry: TensorSpec(entry["dtype"], tuple(entry["shape"]))),
                "engines": _each(raw["engines"], lambda entry: EngineFile(**entry)),
            }
        )
    except FileNotFoundError:
        raise ManifestError(f"{path}: not found; {_REBUILD}") from None
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: not readable as JSON ({error}); {_REBUILD}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"{path}: field missing or of the wrong form ({error}); {_REBUILD}") from error


_REBUILD = "build the engines again with `trtdecode build`"


def _step_of(entry: dict[str, Any]) -> Step:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return _STEP_TYPES[fields.pop("kind")](**fields)


def _each(entries: Mapping[str, Any], make: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: make(entry) for name, entry in entries.items()}
