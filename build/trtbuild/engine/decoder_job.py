"""One build of one engine folder, under its lock: the steps between "these engines are wanted" and a manifest."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir
from trtdecode import support
from trtdecode.errors import BuildError
from trtdecode.executor.engine_files import graph_digest
from trtdecode.executor.engine_steps import (
    STEPS_FILE,
    TABLES_FILE,
    EngineFile,
    EngineStep,
    EngineSteps,
    TokenProfile,
    write_steps,
)
from trtdecode.manifest import EngineSet, Manifest, entry_of, write_manifest

from trtbuild.engine.build_options import BUILD_VERSION, BuildOptions, BuildReport, Progress
from trtbuild.engine.engine_from_onnx import EngineRequest, build_engine
from trtbuild.engine.engine_store import EngineStore
from trtbuild.engine.expand_codes import expand_codes
from trtbuild.engine.expectations import check_patterns, require
from trtbuild.engine.flavour import TensorRt
from trtbuild.engine.layer_report import LayerReport, SegmentLayers, read_report, write_report
from trtbuild.engine.parity_run import ParityRun
from trtbuild.engine.prepare import PreparedGraph, prepare_graph
from trtbuild.engine.profiles import shape_ranges
from trtbuild.engine.segments import CutGraph, Segment, cut, is_rank_part, load_graph
from trtbuild.engine.source_graph import KEPT, reference_name, source_name
from trtbuild.engine.tables import settle_tables, typed_specs, write_tables
from trtbuild.engine.timing_cache import timing_cache_key, timing_cache_path
from trtbuild.quantize.calibrate import input_widths, shipped_texts
from trtbuild.quantize.decoder_statistics import HESSIAN_BUDGET_BYTES, DecoderStatistics
from trtbuild.quantize.linears import find_linears
from trtbuild.quantize.quality import check_quality, read_limits, record_quality
from trtbuild.quantize.quantize_graph import Statistics, possible_scheme
from trtbuild.quantize.recipe import Recipe

#: Largest magnitudes settle after a few texts (massive activations sit on the first tokens of any); means, all that the
#: search for INT4's scales needs, after fewer. Hessians use every text.
RANGE_TEXTS, MEAN_TEXTS = 64, 16


@dataclass(frozen=True, slots=True)
class Target:
    """What the engines are for."""

    sm: int
    tensorrt: TensorRt
    recipe: Recipe
    profiles: tuple[TokenProfile, ...]


class DecoderJob:
    """Builds what is missing. The caller holds the folder's lock.

    Args:
        manifest: as read under the lock.
        progress, report: see `build_engines`.
    """

    def __init__(
        self,
        version_dir: Path,
        manifest: Manifest,
        target: Target,
        options: BuildOptions,
        progress: Progress,
        report: Callable[[str], None],
    ) -> None:
        self._version_dir = version_dir
        self._manifest = manifest
        self._target = target
        self._recipe = target.recipe
        self._options = options
        self._progress = progress
        self._report = report
        self._folder = support.engine_directory(self._recipe.precision, target.sm)
        self._directory = version_dir / self._folder
        self._source = source_name(manifest, target.recipe.precision)
        self._graph_path = version_dir / manifest.graph_file(self._source)
        self._reference_path = version_dir / manifest.graph_file(reference_name(manifest, self._source))
        self._texts = options.calibration_texts or shipped_texts()
        self._cache_key = timing_cache_key(target.tensorrt.flavour, target.tensorrt.version, target.sm)
        self._layers_path = version_dir / "reports" / f"layers-sm{target.sm}-{self._recipe.precision}.json"
        self._layers = _previous_layers(self._layers_path)
        self._store = EngineStore(self._directory)
        self._key = self._engine_key()

    def run(self) -> BuildReport:
        """Builds, checks and publishes; nothing is published when a check fails."""
        target, recipe = self._target, self._recipe
        result = BuildReport(
            self._directory, recipe.precision, target.sm, target.tensorrt.flavour, target.tensorrt.version
        )
        model = load_graph(self._graph_path)
        self._is_part = is_rank_part(model.graph)
        recipe.mixed.require_matches(model.graph)
        keeps_codes = self._source == KEPT and recipe.precision == "int4"
        expand_codes(model, keep=lambda user: keeps_codes and recipe.mixed.of_node(user) in (None, recipe.precision))
        statistics = self._statistics(model.graph)
        pieces, tables = settle_tables(cut(model), recipe)
        wanted = {segment.name: self._store.find(segment.name, self._key) for segment in pieces.segments}
        for name, (_, record, reason) in wanted.items():
            if record is None or name not in self._layers:
                result.built[name] = reason or "its layer report is missing"
        parity = self._parity(pieces, tables) if self._options.verify and result.built else None
        engines: dict[str, EngineFile] = {}
        for number, segment in enumerate(pieces.segments):
            self._progress("build", number, len(pieces.segments))
            file_name, record, _ = wanted[segment.name]
            if segment.name in result.built or parity is not None:
                made = self._prepare_and_build(segment, file_name, statistics, parity, result)
                record = made or record
            assert record is not None
            engines[file_name] = record
        self._progress("build", len(pieces.segments), len(pieces.segments))
        result.reused = [name for name in wanted if name not in result.built]
        if keeps_codes and result.schemes:
            self._report(_kept_line(result.schemes))
        if parity is not None:
            result.quality = parity.finish(recipe.precision)
            check_quality(result.quality, self._options.limits or read_limits())
            record_quality(self._version_dir, result.quality)
        if result.built or not (self._directory / TABLES_FILE).is_file():
            write_tables(self._directory / TABLES_FILE, tables)
        layers = [self._layers[segment.name] for segment in pieces.segments]
        self._publish(pieces, {name: found[0] for name, found in wanted.items()}, engines, layers)
        result.layers_path = self._layers_path
        result.checks = [check for segment in layers for check in segment.checks]
        result.num_bytes = sum(engine.num_bytes for engine in engines.values())
        return result

    def _prepare_and_build(
        self,
        segment: Segment,
        file_name: str,
        statistics: Statistics,
        parity: ParityRun | None,
        result: BuildReport,
    ) -> EngineFile | None:
        """Prepares the segment's graph, lets parity run it, and builds it if it is wanted."""
        with tempfile.TemporaryDirectory(dir=self._directory, prefix="onnx-") as scratch:
            prepared = prepare_graph(segment.model, segment.name, self._recipe, statistics, Path(scratch))
            result.schemes |= prepared.schemes
            if parity is not None:
                parity.add(segment.name, prepared.onnx_path)
            if segment.name not in result.built:
                return None
            self._report(f"{segment.name}: {result.built[segment.name]}; building")
            return self._build(segment, prepared, file_name)

    def _build(self, segment: Segment, prepared: PreparedGraph, file_name: str) -> EngineFile:
        target = self._target
        request = EngineRequest(
            prepared.onnx_path,
            target.sm,
            [shape_ranges(segment.model.graph, profile) for profile in target.profiles],
            self._options.workspace_bytes,
            timing_cache_path(self._cache_key, self._options.timing_cache_root),
        )
        built = build_engine(target.tensorrt, request)
        checks = check_patterns(segment.name, prepared.patterns, built.kernels, prepared.operators)
        self._layers[segment.name] = SegmentLayers(segment.name, built.kernels, prepared.operators, tuple(checks))
        if not self._options.allow_unfused:
            require(checks)
        return self._store.write(file_name, built.serialized, self._key)

    def _parity(self, pieces: CutGraph, tables: Mapping[str, ir.TensorProtocol]) -> ParityRun | None:
        tokens = self._tokens(self._options.evaluation_texts or shipped_texts("evaluation.txt"))
        if self._is_part:
            self._report("one rank's part of a model: parity with float32 is not measured")
            return None
        if tokens is None:
            self._report("no tokenizer in the version: parity with float32 is not measured")
            return None
        return ParityRun(self._reference_path, tokens, pieces.steps, tables, self._recipe.float_type)

    def _statistics(self, graph: ir.Graph) -> Statistics:
        wanted = {possible_scheme(linear, self._recipe) for linear in find_linears(graph)}
        if not any(map(self._recipe.calibrates, wanted)):
            return {}  # as when the checkpoint's own codes are kept
        if self._is_part:
            raise BuildError(
                f"{self._version_dir}: precision {self._recipe.precision} is calibrated with text, and one rank's part "
                "of a model cannot run by itself; build fp16, bf16, int8_weight, or int4 with --int4-method rtn"
            )
        tokens = self._tokens(self._texts)
        if tokens is None:
            raise BuildError(
                f"{self._version_dir}: precision {self._recipe.precision} is calibrated with text, but the version has "
                "no tokenizer; import it with its tokenizer files, or build fp16, bf16 or int8_weight"
            )
        wants_hessians = self._recipe.needs_hessians
        num_texts = RANGE_TEXTS if wanted & {"fp8", "int8"} else MEAN_TEXTS
        return DecoderStatistics(
            self._reference_path,
            tokens if wants_hessians else tokens[:num_texts],
            input_widths(graph),
            hessian_budget=HESSIAN_BUDGET_BYTES if wants_hessians else 0,
            progress=lambda done, total: self._progress("calibrate", done, total),
        )

    def _tokens(self, texts: tuple[str, ...]) -> list[list[int]] | None:
        from trtdecode.text.tokenizer import TOKENIZER_FILE, Tokenizer

        if not (self._version_dir / TOKENIZER_FILE).is_file():
            return None
        tokenizer = Tokenizer.from_dir(self._version_dir)
        return [tokenizer.encode(text) for text in texts]

    def _engine_key(self) -> dict[str, str]:
        target, text = self._target, "\n\n".join(self._texts)
        return {
            "flavour": target.tensorrt.flavour,
            "builder_version": target.tensorrt.version,
            "sm": str(target.sm),
            "precision": self._recipe.precision,
            "graph": graph_digest(self._manifest, self._graph_path.name),
            "profiles": ", ".join(f"{one.min_tokens}..{one.opt_tokens}..{one.max_tokens}" for one in target.profiles),
            "recipe": f"{self._recipe.key()} v{BUILD_VERSION} workspace {self._options.workspace_bytes}",
            "calibration": hashlib.sha256(text.encode()).hexdigest() if self._recipe.needs_calibration else "none",
        }

    def _publish(
        self,
        pieces: CutGraph,
        files: Mapping[str, str],
        engines: Mapping[str, EngineFile],
        layers: list[SegmentLayers],
    ) -> None:
        """Switches segments.json, then the manifest, then removes what neither names."""
        target, recipe = self._target, self._recipe
        tensorrt = target.tensorrt
        profiles = tuple((profile.name, profile.opt_tokens) for profile in target.profiles)
        write_report(
            self._layers_path,
            LayerReport(recipe.precision, target.sm, tensorrt.flavour, tensorrt.version, profiles, tuple(layers)),
        )
        steps = EngineSteps(
            precision=recipe.precision,
            sm=target.sm,
            flavour=tensorrt.flavour,
            builder_version=tensorrt.version,
            source_graph=self._source,
            profiles=target.profiles,
            steps=tuple(
                replace(step, file=files[step.file]) if isinstance(step, EngineStep) else step for step in pieces.steps
            ),
            tensors=typed_specs(pieces.tensors, recipe.float_type),
            output=pieces.output,
            engines=engines,
        )
        write_steps(self._directory, steps)
        self._write_manifest(steps.segment_files)
        self._store.remove_stale(steps.segment_files)

    def _write_manifest(self, segments: tuple[str, ...]) -> None:
        kept = {name: one for name, one in self._manifest.files.items() if not name.startswith(f"{self._folder}/")}
        for name in (*segments, TABLES_FILE, STEPS_FILE):
            kept[f"{self._folder}/{name}"] = entry_of(self._directory / name)
        engine_set = EngineSet(
            directory=self._folder,
            precision=self._recipe.precision,
            sm=self._target.sm,
            flavour=self._target.tensorrt.flavour,
            builder_version=self._target.tensorrt.version,
            timing_cache_key=self._cache_key,
            segments=segments,
            graph_sha256=self._key["graph"],
        )
        others = tuple(one for one in self._manifest.engines if one.directory != self._folder)
        write_manifest(self._version_dir, replace(self._manifest, files=kept, engines=(*others, engine_set)))


def _kept_line(schemes: Mapping[str, str]) -> str:
    counts = Counter(schemes.values())
    pairs = f", {counts['int4_pair']} of 5 to 8 bits as two halves in INT4" if counts["int4_pair"] else ""
    return f"the checkpoint's own codes are kept: {counts['int4']} matrices in INT4{pairs}"


def _previous_layers(path: Path) -> dict[str, SegmentLayers]:
    try:
        return {segment.segment: segment for segment in read_report(path).segments}
    except BuildError:
        return {}  # none yet, or unreadable: the segments are built again
