"""Checkpoint -> model version on disk: the ordered list of stages.

A version is built in a hidden folder beside its place and appears by one rename, complete and flushed to disk. A
server polling the repository never sees half of one.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtdecode.errors import CheckpointError, UnsupportedError
from trtdecode.manifest import Manifest, ModelSpec, RankLayout, entry_of, write_manifest

from trtbuild.checkpoint import Checkpoint, Weights, open_checkpoint
from trtbuild.checkpoint.base import UnpackedWeights
from trtbuild.checkpoint.huggingface import tokenizer_files
from trtbuild.checkpoint.overrides import TrackedConfig, check_read, override
from trtbuild.graph.author import PRECISIONS, author_graph, config_of
from trtbuild.graph.check import check_graph
from trtbuild.graph.encoder_config import EncoderConfig
from trtbuild.graph.family import ModelConfig
from trtbuild.quantize.int8 import DEFAULT_GROUP_SIZE
from trtbuild.ranks import check_layout, write_rank_graphs, write_rank_manifests

#: Packages whose versions the manifest records.
BUILDER_PACKAGES = ("trtdecode", "onnx", "onnx-ir", "numpy", "gguf")

REPORTS_DIR = "reports"


@dataclass
class ImportReport:
    """What an import did and decided."""

    source: str
    version_dir: Path
    spec: ModelSpec
    precisions: tuple[str, ...]
    decisions: list[str] = field(default_factory=list)  # one sentence each
    stage_seconds: dict[str, float] = field(default_factory=dict)
    num_bytes: int = 0  # of the version folder


@dataclass
class _Import:
    """State handed from stage to stage."""

    source: Path
    staging: Path
    precisions: tuple[str, ...]
    report: ImportReport
    checkpoint: Checkpoint
    config: ModelConfig
    overrides: dict[str, Any]
    ranks: RankLayout
    group_size: int
    graphs: dict[str, str] = field(default_factory=dict)


def import_checkpoint(
    source: Path,
    model_dir: Path,
    *,
    version: int = 1,
    precisions: Sequence[str] | None = None,
    name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    tokenizer: Path | None = None,
    replace: bool = False,
    ranks: RankLayout | None = None,
    requantize: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> ImportReport:
    """Writes `model_dir`/`version` and, where there is none, a minimal `model_dir`/config.pbtxt.

    Args:
        source: a .gguf file, or a folder of Hugging Face files.
        model_dir: the model's folder in a Triton model repository.
        version: a positive number; Triton serves the highest.
        precisions: weight precisions to write, of PRECISIONS; None: see `default_precision`.
        name: the model's name in config.pbtxt; default the folder's.
        overrides: config keys to replace, dotted for nested ones; see `checkpoint.overrides`.
        tokenizer: a folder whose tokenizer files are used instead of the checkpoint's.
        replace: overwrite an existing version.
        ranks: how many ranks the model is split over; each gets a folder of its own (ranks.py). Default one.
        requantize: INT8 with one scale a row and no zero points, from the checkpoint's unpacked codes where it has
            codes. It rounds twice, but the products of `compute_precision: int8` are fastest on such weights.
        progress: called with one line at the start of each stage.

    Raises:
        CheckpointError: see `open_checkpoint` and `author_graph`; or the version exists and `replace` is false.
        UnsupportedError: an unknown precision, or a model that does not divide by the ranks.
        ConfigError: an override that nothing reads.
    """
    if precisions is not None:
        _check_precisions(precisions)
    version_dir = model_dir / str(version)
    if version < 1:
        raise UnsupportedError(f"version {version}: Triton's versions are positive numbers; use 1 or more")
    if version_dir.exists() and not replace:
        raise CheckpointError(f"{version_dir}: exists; choose another version, or replace it on purpose")
    progress(f"open {source}")
    checkpoint, decisions = _open(source, overrides or {}, tokenizer, requantize)
    config = config_of(checkpoint)
    if precisions is None:
        precisions = (default_precision(config, checkpoint.weights),)
    ranks = ranks or RankLayout()
    if ranks.num_ranks > 1:
        check_layout(config, ranks)
        decisions.append(f"split over {ranks.num_ranks} ranks: {ranks}; embedding and head are whole on each")
    report = ImportReport(checkpoint.source, version_dir, config.spec, tuple(precisions))
    report.decisions += decisions + _describe(checkpoint, config, report.precisions)
    staging = model_dir / f".import-{version}-{os.getpid()}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        state = _Import(
            source,
            staging,
            report.precisions,
            report,
            checkpoint,
            config,
            dict(overrides or {}),
            ranks,
            group_size=0 if requantize else DEFAULT_GROUP_SIZE,
        )
        for title, stage in STAGES:
            progress(title)
            begin = time.perf_counter()
            stage(state)
            report.stage_seconds[title] = time.perf_counter() - begin
        _publish(staging, version_dir)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    write_model_config(model_dir, name or model_dir.name, config.spec.task)
    return report


def _open(
    source: Path, overrides: Mapping[str, Any], tokenizer: Path | None, requantize: bool
) -> tuple[Checkpoint, list[str]]:
    """The checkpoint with what the caller wants changed, and one sentence a change."""
    checkpoint = open_checkpoint(source)
    decisions = [f"{key} set to {value!r}" for key, value in overrides.items()]
    files = checkpoint.tokenizer
    if tokenizer is not None:
        files = tokenizer_files(tokenizer)
        decisions.append(f"tokenizer from {tokenizer}")
        if "tokenizer.json" not in files:
            raise CheckpointError(f"{tokenizer}: holds no tokenizer.json; name a folder that has one")
    weights = checkpoint.weights
    if requantize:
        weights = UnpackedWeights(weights)
        decisions.append("INT8 weights are quantised anew, with one scale a row")
    config = override(checkpoint.config, overrides)
    return dataclasses.replace(checkpoint, config=config, tokenizer=files, weights=weights), decisions


# -- stages -------------------------------------------------------------------------------------------------------


def _write_graphs(state: _Import) -> None:
    for precision in state.precisions:
        stem = "decoder" if state.config.spec.task == "generate" else "encoder"
        file_name = f"{stem}.onnx" if precision == "f32" else f"{stem}.{precision}.onnx"
        if state.ranks.num_ranks == 1:
            author_graph(state.checkpoint, state.staging / file_name, precision, group_size=state.group_size)
        else:
            write_rank_graphs(
                state.checkpoint, state.staging, file_name, precision, state.ranks, group_size=state.group_size
            )
        state.graphs[precision] = file_name


def _check_graphs(state: _Import) -> None:
    assert isinstance(state.checkpoint.config, TrackedConfig)
    check_read(state.checkpoint.config, state.overrides)
    for file_name in state.graphs.values() if state.ranks.num_ranks == 1 else ():  # ranks' graphs have been checked
        check_graph(state.staging / file_name, state.config.spec)


def _write_tokenizer(state: _Import) -> None:
    if "tokenizer.json" not in state.checkpoint.tokenizer:
        state.report.decisions.append("no tokenizer in the checkpoint: the model takes input_ids only")
    for file_name, content in state.checkpoint.tokenizer.items():
        (state.staging / file_name).write_bytes(content)


def _write_report(state: _Import) -> None:
    reports = state.staging / REPORTS_DIR
    reports.mkdir()
    facts = {"source": state.report.source, "decisions": state.report.decisions, "seconds": state.report.stage_seconds}
    (reports / "import.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


def _write_manifest(state: _Import) -> None:
    files = {path.name: entry_of(path) for path in sorted(state.staging.iterdir()) if path.is_file()}
    split = state.ranks.num_ranks > 1
    if split:
        write_rank_manifests(state.staging, state.config, state.checkpoint.source, state.graphs, state.ranks)
    state.report.num_bytes = sum(path.stat().st_size for path in state.staging.rglob("*") if path.is_file())
    manifest = Manifest(
        spec=state.config.spec,
        source=state.checkpoint.source,
        graphs={} if split else state.graphs,
        files=files,
        builder={package: _version_of(package) for package in BUILDER_PACKAGES},
        ranks=state.ranks,
    )
    write_manifest(state.staging, manifest)


#: In this order; each reads what the ones before it left in the state.
STAGES: tuple[tuple[str, Callable[[_Import], None]], ...] = (
    ("write graphs", _write_graphs),
    ("check graphs", _check_graphs),
    ("write tokenizer", _write_tokenizer),
    ("write report", _write_report),
    ("write manifest", _write_manifest),
)


# -- helpers ------------------------------------------------------------------------------------------------------


def _check_precisions(precisions: Sequence[str]) -> None:
    unknown = sorted(set(precisions) - set(PRECISIONS))
    if unknown or not precisions:
        raise UnsupportedError(f"precisions {unknown} are not known; choose one or more of {', '.join(PRECISIONS)}")


def default_precision(config: ModelConfig, weights: Weights) -> str:
    """What is written unless told otherwise; one precision, since f32 data is four to eight times the size.

    Encoders: f32, bound by arithmetic and compared with their originals to 1e-5. Decoders: a checkpoint of 4-bit codes
    keeps them, exactly (and a CPU decodes faster than with 8 bits); anything else becomes INT8.
    """
    if config.spec.task != "generate":
        return "f32"
    bits = weights.common_bits()
    return "int4" if bits is not None and bits <= 4 else "int8"


def write_model_config(model_dir: Path, name: str, task: str) -> None:
    """A minimal config.pbtxt, unless there is one: everything else is filled in by the backend."""
    path = model_dir / "config.pbtxt"
    shape = "max_batch_size: 0\n" if task == "generate" else ""  # an encoder gets batches, whose size the backend sets
    if not path.exists():
        path.write_text(f'name: "{name}"\nbackend: "trtdecode"\n{shape}', "utf-8")


def _describe(checkpoint: Checkpoint, config: ModelConfig, precisions: tuple[str, ...]) -> list[str]:
    spec = config.spec
    shape = f"family {spec.family}: {spec.num_layers} layers, hidden {spec.hidden_size}, "
    if isinstance(config, EncoderConfig):
        heads = f"{spec.num_heads} heads of {spec.head_dim}, vocabulary {spec.vocab_size}"
        return [*checkpoint.decisions, shape + heads, _describe_task(config), f"weights {', '.join(precisions)}"]
    windows = sorted(set(spec.sliding_windows) - {0})
    return [
        *checkpoint.decisions,
        f"{shape}{spec.num_heads} query and {spec.num_kv_heads} KV heads of {spec.head_dim}, "
        f"vocabulary {spec.vocab_size}",
        f"context {spec.max_context_len} tokens" + (f", sliding window {windows}" if windows else ""),
        f"weights {', '.join(precisions)}{_describe_codes(checkpoint.weights)}; "
        f"head {'tied to the embedding' if config.tied_head else 'of its own'}",
        f"generation ends at token ids {list(spec.eos_token_ids)}",
    ]


def _describe_codes(weights: Weights) -> str:
    bits = weights.common_bits()
    return "" if bits is None else f" (the checkpoint's own codes, mostly of {bits} bits, are kept as they are)"


def _describe_task(config: EncoderConfig) -> str:
    text = f"task {config.task}, texts up to {config.max_context_len} tokens"
    if config.task == "embed":
        return f"{text}, {config.pooling} pooling, {'length 1' if config.normalize else 'not normalised'}"
    return f"{text}, {config.num_labels} scores"


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _publish(staging: Path, version_dir: Path) -> None:
    """Flushes every file and renames the folder into place; an old version steps aside and is then removed."""
    for path in staging.rglob("*"):
        _fsync(path)
    _fsync(staging)
    old = staging.with_name(f"{staging.name}-old")
    if version_dir.exists():
        version_dir.rename(old)
    staging.rename(version_dir)
    _fsync(version_dir.parent)
    shutil.rmtree(old, ignore_errors=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
