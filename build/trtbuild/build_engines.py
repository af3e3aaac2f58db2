"""Graph -> engines for one precision and one SM: `trtdecode build`, and the server when an engine is missing."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir
from trtdecode import support
from trtdecode.errors import BuildError
from trtdecode.executor.base import GRAPH_OUTPUT
from trtdecode.executor.engine_files import graph_digest
from trtdecode.executor.engine_steps import (
    TABLES_FILE,
    EngineFile,
    EngineStep,
    EngineSteps,
    TensorSpec,
    TokenProfile,
    write_steps,
)
from trtdecode.manifest import EngineSet, Manifest, entry_of, read_manifest, write_manifest

from trtbuild.engine.engine_from_onnx import EngineRequest, ShapeRange, build_engine
from trtbuild.engine.engine_store import EngineStore
from trtbuild.engine.expectations import check_patterns, require
from trtbuild.engine.flavour import TensorRt, load_tensorrt, resolve_flavour
from trtbuild.engine.layer_report import Check, LayerReport, SegmentLayers, read_report, write_report
from trtbuild.engine.locks import build_lock
from trtbuild.engine.prepare import prepare_graph
from trtbuild.engine.profiles import token_profiles
from trtbuild.engine.segments import CutGraph, Segment, cut, load_graph
from trtbuild.engine.tables import settle_tables, write_tables
from trtbuild.engine.timing_cache import timing_cache_key, timing_cache_path
from trtbuild.quantize.calibrate import input_widths, shipped_texts
from trtbuild.quantize.decoder_statistics import HESSIAN_BUDGET_BYTES, DecoderStatistics
from trtbuild.quantize.quantize_graph import Statistics
from trtbuild.quantize.recipe import Recipe

#: Raised whenever the same inputs would give other engines than before: older ones are then cache misses.
BUILD_VERSION = 1

SOURCE_GRAPH = "f32"

Progress = Callable[[str, int, int], None]  # (stage, done, total)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What a build may be asked for besides precision, SM and flavour. Limits are those of the serving config."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    workspace_bytes: int = 0  # 0: the builder's default
    allow_unfused: bool = False  # report a missing fusion instead of failing
    timing_cache_root: Path | None = None
    calibration_texts: tuple[str, ...] = ()  # default: the shipped ones


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
    num_bytes: int = 0  # engines and tables
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    schemes: dict[str, str] = field(default_factory=dict)  # linear layer -> scheme
    layers_path: Path | None = None


def build_engines(
    version_dir: Path,
    precision: str,
    sm: int,
    *,
    flavour: str = "auto",
    recipe: Recipe | None = None,
    options: BuildOptions | None = None,
    progress: Progress = lambda stage, done, total: None,
    report: Callable[[str], None] = lambda line: None,
) -> BuildReport:
    """Builds the engines of a model version that are missing or do not fit, and records them in its manifest.

    Args:
        version_dir: a folder that `trtdecode import` wrote, with the f32 graph.
        precision: a key of `support.ENGINE_PRECISIONS`.
        sm: compute capability without the dot.
        flavour: "auto", "tensorrt" or "tensorrt-rtx".
        recipe: quantisation methods and exceptions; default `Recipe(precision)`.
        progress: called as (stage, done, total).
        report: gets one line per engine that is built, with the reason, and per wait.

    Raises:
        UnsupportedError: the combination is refused, or an operator is not TensorRT's.
        ManifestError: the version folder lacks the f32 graph.
        BuildError: the builder failed, or a required fusion is missing.
    """
    started = time.monotonic()
    flavour = resolve_flavour(flavour, sm)
    support.check_engine(precision, sm, flavour)
    recipe = recipe or Recipe(precision)
    options = options or BuildOptions()
    profiles = token_profiles(options.max_num_seqs, options.max_num_batched_tokens)
    manifest = read_manifest(version_dir)
    manifest.graph_file(SOURCE_GRAPH)
    tensorrt = load_tensorrt(flavour)
    directory = version_dir / support.engine_directory(precision, sm)
    with build_lock(directory, on_wait=lambda: report(f"{directory}: waiting for another build")):
        # Read again: another build may have changed the manifest while we waited.
        job = _Job(version_dir, directory, read_manifest(version_dir), recipe, sm, tensorrt, options, profiles)
        result = job.run(progress, report)
    result.seconds = time.monotonic() - started
    return result


class _Job:
    """One build of one folder, under its lock."""

    def __init__(
        self,
        version_dir: Path,
        directory: Path,
        manifest: Manifest,
        recipe: Recipe,
        sm: int,
        tensorrt: TensorRt,
        options: BuildOptions,
        profiles: tuple[TokenProfile, ...],
    ) -> None:
        self._version_dir = version_dir
        self._directory = directory
        self._manifest = manifest
        self._recipe = recipe
        self._sm = sm
        self._tensorrt = tensorrt
        self._options = options
        self._profiles = profiles
        self._graph_path = version_dir / manifest.graph_file(SOURCE_GRAPH)
        self._texts = options.calibration_texts or shipped_texts()
        self._cache_key = timing_cache_key(tensorrt.flavour, tensorrt.version, sm)
        self._timing_cache = timing_cache_path(self._cache_key, options.timing_cache_root)
        self._store = EngineStore(directory)
        self._layers = _previous_layers(self._layers_path)
        self._key = self._engine_key()

    @property
    def _layers_path(self) -> Path:
        return self._version_dir / "reports" / f"layers-sm{self._sm}-{self._recipe.precision}.json"

    def run(self, progress: Progress, report: Callable[[str], None]) -> BuildReport:
        result = BuildReport(
            self._directory, self._recipe.precision, self._sm, self._tensorrt.flavour, self._tensorrt.version
        )
        model = load_graph(self._graph_path)
        widths = input_widths(model.graph)
        pieces, tables = settle_tables(cut(model), self._recipe)
        statistics = self._statistics(widths, progress)
        engines: dict[str, EngineFile] = {}
        files: dict[str, str] = {}
        layers: list[SegmentLayers] = []
        for number, segment in enumerate(pieces.segments):
            progress("build", number, len(pieces.segments))
            name, record, reason = self._store.find(segment.name, self._key)
            if record is None or segment.name not in self._layers:
                reason = reason or "its layer report is missing"
                report(f"{segment.name}: {reason}; building")
                result.built[segment.name] = reason
                record = self._build(segment, name, statistics, result)
            else:
                result.reused.append(segment.name)
            engines[name], files[segment.name] = record, name
            layers.append(self._layers[segment.name])
        progress("build", len(pieces.segments), len(pieces.segments))
        if result.built or not (self._directory / TABLES_FILE).is_file():
            write_tables(self._directory / TABLES_FILE, tables)
        write_report(self._layers_path, self._layer_report(layers))
        self._publish(pieces, files, engines)
        result.layers_path = self._layers_path
        result.checks = [check for segment in layers for check in segment.checks]
        result.num_bytes = sum(engine.num_bytes for engine in engines.values())
        return result

    def _build(self, segment: Segment, name: str, statistics: Statistics, result: BuildReport) -> EngineFile:
        with tempfile.TemporaryDirectory(dir=self._directory, prefix="onnx-") as scratch:
            prepared = prepare_graph(segment.model, segment.name, self._recipe, statistics, Path(scratch))
            profiles = [shape_ranges(segment.model.graph, profile) for profile in self._profiles]
            built = build_engine(
                self._tensorrt,
                EngineRequest(
                    prepared.onnx_path, self._sm, profiles, self._options.workspace_bytes, self._timing_cache
                ),
            )
        checks = check_patterns(segment.name, prepared.patterns, built.kernels, prepared.operators)
        self._layers[segment.name] = SegmentLayers(segment.name, built.kernels, prepared.operators, tuple(checks))
        result.schemes |= prepared.schemes
        if not self._options.allow_unfused:
            require(checks)
        return self._store.write(name, built.serialized, self._key)

    def _statistics(self, widths: Mapping[str, int], progress: Progress) -> Statistics:
        if not self._recipe.needs_calibration:
            return {}
        from trtdecode.text.tokenizer import Tokenizer

        tokenizer = Tokenizer.from_dir(self._version_dir)
        wants_hessians = self._recipe.int4_method == "gptq"
        return DecoderStatistics(
            self._graph_path,
            [tokenizer.encode(text) for text in self._texts],
            widths,
            hessian_budget=HESSIAN_BUDGET_BYTES if wants_hessians else 0,
            progress=lambda done, total: progress("calibrate", done, total),
        )

    def _engine_key(self) -> dict[str, str]:
        text = "\n\n".join(self._texts)
        return {
            "flavour": self._tensorrt.flavour,
            "builder_version": self._tensorrt.version,
            "sm": str(self._sm),
            "precision": self._recipe.precision,
            "graph": graph_digest(self._manifest, self._graph_path.name),
            "profiles": ", ".join(f"{one.min_tokens}..{one.opt_tokens}..{one.max_tokens}" for one in self._profiles),
            "recipe": f"{self._recipe.key()} v{BUILD_VERSION} workspace {self._options.workspace_bytes}",
            "calibration": hashlib.sha256(text.encode()).hexdigest() if self._recipe.needs_calibration else "none",
        }

    def _layer_report(self, layers: list[SegmentLayers]) -> LayerReport:
        profiles = tuple((profile.name, profile.opt_tokens) for profile in self._profiles)
        return LayerReport(
            self._recipe.precision, self._sm, self._tensorrt.flavour, self._tensorrt.version, profiles, tuple(layers)
        )

    def _publish(self, pieces: CutGraph, files: Mapping[str, str], engines: Mapping[str, EngineFile]) -> None:
        """Switches segments.json, then the manifest, then removes what neither names."""
        steps = tuple(
            replace(step, file=files[step.file]) if isinstance(step, EngineStep) else step for step in pieces.steps
        )
        write_steps(
            self._directory,
            EngineSteps(
                precision=self._recipe.precision,
                sm=self._sm,
                flavour=self._tensorrt.flavour,
                builder_version=self._tensorrt.version,
                source_graph=SOURCE_GRAPH,
                profiles=self._profiles,
                steps=steps,
                tensors=dict(_typed(pieces.tensors, self._recipe.float_type)),
                output=pieces.output,
                engines=engines,
            ),
        )
        self._write_manifest(tuple(files.values()))
        self._store.remove_stale(tuple(files.values()))

    def _write_manifest(self, segments: tuple[str, ...]) -> None:
        relative = support.engine_directory(self._recipe.precision, self._sm)
        kept = {name: entry for name, entry in self._manifest.files.items() if not name.startswith(f"{relative}/")}
        for name in (*segments, TABLES_FILE, "segments.json"):
            kept[f"{relative}/{name}"] = entry_of(self._directory / name)
        engine_set = EngineSet(
            directory=relative,
            precision=self._recipe.precision,
            sm=self._sm,
            flavour=self._tensorrt.flavour,
            builder_version=self._tensorrt.version,
            timing_cache_key=self._cache_key,
            segments=segments,
            graph_sha256=self._key["graph"],
        )
        others = tuple(one for one in self._manifest.engines if one.directory != relative)
        write_manifest(self._version_dir, replace(self._manifest, files=kept, engines=(*others, engine_set)))


def shape_ranges(graph: ir.Graph, profile: TokenProfile) -> dict[str, ShapeRange]:
    """The range of every dynamic input of a segment."""
    ranges: dict[str, ShapeRange] = {}
    for value in graph.inputs:
        assert value.shape is not None
        if not value.shape.is_static():
            low, best, high = (
                tuple(size if isinstance(size, int) else tokens for size in value.shape)
                for tokens in (profile.min_tokens, profile.opt_tokens, profile.max_tokens)
            )
            ranges[value.name or ""] = (low, best, high)
    return ranges


def _typed(tensors: Mapping[str, TensorSpec], float_type: str) -> dict[str, TensorSpec]:
    """Specs of the float32 graph in the engines' types; logits and tables have theirs already."""
    return {
        name: replace(spec, dtype=float_type) if spec.dtype == "f32" and name != GRAPH_OUTPUT else spec
        for name, spec in tensors.items()
    }


def _previous_layers(path: Path) -> dict[str, SegmentLayers]:
    try:
        return {segment.segment: segment for segment in read_report(path).segments}
    except BuildError:
        return {}  # none yet, or unreadable: the segments are built again
