"""One build of one ONNX model's engine, under its folder's lock."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir
from trtdecode.executor.engine_steps import EngineFile, EngineStep, EngineSteps, TokenProfile, write_steps

from trtbuild.engine.build_options import BUILD_VERSION
from trtbuild.engine.engine_from_onnx import EngineRequest, ShapeRange, build_engine
from trtbuild.engine.engine_store import EngineStore
from trtbuild.engine.expectations import check_patterns, require
from trtbuild.engine.flavour import TensorRt
from trtbuild.engine.layer_report import Check, LayerReport, SegmentLayers, write_report
from trtbuild.engine.open_onnx import digest_of
from trtbuild.engine.prepare import PreparedGraph, prepare_graph
from trtbuild.engine.timing_cache import timing_cache_key, timing_cache_path
from trtbuild.quantize.calibrate_onnx import Sample, calibrate_onnx, run_samples
from trtbuild.quantize.quantize_graph import Statistics
from trtbuild.quantize.recipe import Recipe
from trtbuild.quantize.segment_runner import open_session

LAYERS_FILE = "layers.json"
PROFILE_NAME = "default"


@dataclass(frozen=True, slots=True)
class OnnxOptions:
    """What a build may be asked for besides precision, SM and flavour."""

    dimensions: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)  # name -> minimum, optimum, maximum
    workspace_bytes: int = 0  # 0: the builder's default
    allow_unfused: bool = False  # report a missing fusion instead of failing
    timing_cache_root: Path | None = None
    samples: Sequence[Sample] = ()  # for calibration (fp8, int8, int4) and for comparing with float32


@dataclass(slots=True)
class OnnxReport:
    """What a build did."""

    engine_path: Path
    reason: str  # why it was built; "" when the present engine fits
    num_bytes: int
    layers_path: Path
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    schemes: dict[str, str] = field(default_factory=dict)
    rewrites: dict[str, int] = field(default_factory=dict)  # rule -> how often it applied
    errors: dict[str, float] = field(default_factory=dict)  # output -> |built - float32| / |float32| over the samples


class OnnxJob:
    """Builds the engine unless the present one fits.

    Args:
        model: as `open_onnx` gives it; changed.
        ranges: of every dynamic input.
        report: gets one line with the reason of a build.
    """

    def __init__(
        self,
        onnx_path: Path,
        model: ir.Model,
        output_dir: Path,
        sm: int,
        tensorrt: TensorRt,
        recipe: Recipe,
        ranges: Mapping[str, ShapeRange],
        options: OnnxOptions,
        report: Callable[[str], None],
    ) -> None:
        self._name = onnx_path.stem
        self._model = model
        self._output_dir = output_dir
        self._sm = sm
        self._tensorrt = tensorrt
        self._recipe = recipe
        self._ranges = ranges
        self._options = options
        self._report = report
        self._inputs = [value.name or "" for value in model.graph.inputs]
        self._outputs = [value.name or "" for value in model.graph.outputs]
        self._layers_path = output_dir / LAYERS_FILE
        self._store = EngineStore(output_dir)
        self._key = {
            "flavour": tensorrt.flavour,
            "builder_version": tensorrt.version,
            "sm": str(sm),
            "precision": recipe.precision,
            "graph": digest_of(onnx_path, model),
            "profiles": str(sorted(ranges.items())),
            "recipe": f"{recipe.key()} v{BUILD_VERSION} workspace {options.workspace_bytes}",
            "calibration": _digest(options.samples) if recipe.needs_calibration else "none",
        }

    def run(self) -> OnnxReport:
        """Prepares, compares, builds, checks and records."""
        file_name, record, reason = self._store.find(self._name, self._key)
        if record is not None and self._layers_path.is_file():
            return OnnxReport(self._output_dir / file_name, "", record.num_bytes, self._layers_path)
        reason = reason or "its layer report is missing"
        self._report(f"{self._name}: {reason}; building")
        statistics = self._statistics()
        samples = self._options.samples
        expected = list(run_samples(self._model, samples, self._outputs)) if samples else []
        with tempfile.TemporaryDirectory(dir=self._output_dir, prefix="onnx-") as scratch:
            prepared = prepare_graph(
                self._model,
                self._name,
                self._recipe,
                statistics,
                Path(scratch),
                fp32_inputs=self._inputs,
                fp32_outputs=self._outputs,
            )
            errors = relative_errors(prepared.onnx_path, samples, expected)
            record, checks = self._build(prepared, file_name)
        self._write_record(file_name, record)
        return OnnxReport(
            self._output_dir / file_name,
            reason,
            record.num_bytes,
            self._layers_path,
            checks=checks,
            schemes=prepared.schemes,
            rewrites=prepared.rewrites,
            errors=errors,
        )

    def _statistics(self) -> Statistics:
        if not self._recipe.needs_calibration:
            return {}
        return calibrate_onnx(self._model, self._options.samples, with_hessians=self._recipe.needs_hessians)

    def _build(self, prepared: PreparedGraph, file_name: str) -> tuple[EngineFile, list[Check]]:
        options, tensorrt = self._options, self._tensorrt
        cache_key = timing_cache_key(tensorrt.flavour, tensorrt.version, self._sm)
        cache = timing_cache_path(cache_key, options.timing_cache_root)
        request = EngineRequest(prepared.onnx_path, self._sm, [self._ranges], options.workspace_bytes, cache)
        built = build_engine(tensorrt, request)
        checks = check_patterns(self._name, prepared.patterns, built.kernels, prepared.operators)
        if not options.allow_unfused:
            require(checks)
        layers = SegmentLayers(self._name, built.kernels, prepared.operators, tuple(checks))
        tokens = max((best[0] for _, best, _ in self._ranges.values()), default=1)
        write_report(
            self._layers_path,
            LayerReport(
                self._recipe.precision,
                self._sm,
                tensorrt.flavour,
                tensorrt.version,
                ((PROFILE_NAME, tokens),),
                (layers,),
            ),
        )
        return self._store.write(file_name, built.serialized, self._key), checks

    def _write_record(self, file_name: str, record: EngineFile) -> None:
        """The same record as a decoder's, of one step: what the next build compares with."""
        steps = EngineSteps(
            precision=self._recipe.precision,
            sm=self._sm,
            flavour=self._tensorrt.flavour,
            builder_version=self._tensorrt.version,
            source_graph="onnx",
            profiles=(TokenProfile(PROFILE_NAME, 1, 1, 1),),
            steps=(EngineStep(file_name, tuple(self._inputs), tuple(self._outputs), "T"),),
            tensors={},
            output=self._outputs[0],
            engines={file_name: record},
        )
        write_steps(self._output_dir, steps)
        self._store.remove_stale([file_name])


def relative_errors(onnx_path: Path, samples: Sequence[Sample], expected: Sequence[Sample]) -> dict[str, float]:
    """Root mean square of the difference over that of the float32 result, by output.

    Empty without samples, and for BF16, which ONNX Runtime cannot run on a CPU.
    """
    if not expected:
        return {}
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotInRuntime

    try:
        session = open_session(onnx_path)
    except NotInRuntime:
        return {}
    names = [value.name for value in session.get_inputs()]
    squares = {name: np.zeros(2) for name in expected[0]}
    for sample, wanted in zip(samples, expected, strict=True):
        results = session.run(list(wanted), {name: sample[name] for name in names})
        for name, result in zip(wanted, results, strict=True):
            reference = wanted[name].astype(np.float64)
            squares[name] += (np.square(result - reference).sum(), np.square(reference).sum())
    return {name: float(np.sqrt(difference / max(energy, 1e-30))) for name, (difference, energy) in squares.items()}


def _digest(samples: Sequence[Sample]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        for name in sorted(sample):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(sample[name]).tobytes())
    return digest.hexdigest()
