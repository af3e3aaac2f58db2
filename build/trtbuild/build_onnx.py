"""Any stateless ONNX model -> one engine: `trtdecode build --onnx FILE`. The same rules, schemes, checks and report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx_ir as ir
from trtdecode import support
from trtdecode.errors import ConfigError

from trtbuild.engine.engine_from_onnx import ShapeRange
from trtbuild.engine.flavour import load_tensorrt, resolve_flavour
from trtbuild.engine.locks import build_lock
from trtbuild.engine.onnx_job import OnnxJob, OnnxOptions, OnnxReport
from trtbuild.engine.open_onnx import open_onnx
from trtbuild.quantize.recipe import Recipe

__all__ = ["OnnxOptions", "OnnxReport", "Recipe", "build_onnx", "input_ranges"]

DEFAULT_RANGE = (1, 8, 64)


def build_onnx(
    onnx_path: Path,
    output_dir: Path,
    precision: str,
    sm: int,
    *,
    flavour: str = "auto",
    recipe: Recipe | None = None,
    options: OnnxOptions | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> OnnxReport:
    """Builds one engine, unless the one that is there fits. Inputs and outputs keep the graph's own types.

    Args:
        onnx_path: a model without state; weights may lie in external data of any size.
        output_dir: gets the engine, `segments.json` and `layers.json`.
        report: gets a line with the reason of a build.

    Raises:
        UnsupportedError: the combination, or operators, each named with its nodes.
        ConfigError: a range for a dimension that the graph has not.
        BuildError: the builder failed, a required fusion is missing, or samples are needed.
    """
    started = time.monotonic()
    flavour = resolve_flavour(flavour, sm)
    support.check_engine(precision, sm, flavour)
    options = options or OnnxOptions()
    model = open_onnx(onnx_path)
    ranges = input_ranges(model.graph, options.dimensions)
    recipe = recipe or Recipe(precision)
    recipe.mixed.require_matches(model.graph)
    tensorrt = load_tensorrt(flavour)
    with build_lock(output_dir, on_wait=lambda: report(f"{output_dir}: waiting for another build")):
        job = OnnxJob(onnx_path, model, output_dir, sm, tensorrt, recipe, ranges, options, report)
        result = job.run()
    result.seconds = time.monotonic() - started
    return result


def input_ranges(graph: ir.Graph, dimensions: Mapping[str, tuple[int, int, int]]) -> dict[str, ShapeRange]:
    """The range of every input with dynamic dimensions; those not given get 1 to 64, tuned for 8.

    Raises:
        ConfigError: a range that is not rising from 1 or more, or a name that the graph does not have.
    """
    known: set[str] = set()
    ranges: dict[str, ShapeRange] = {}
    for value in graph.inputs:
        sizes = list(value.shape or ())
        names = [str(size) for size in sizes if not isinstance(size, int)]
        known.update(names)
        if names:
            low, best, high = (
                tuple(
                    size if isinstance(size, int) else dimensions.get(str(size), DEFAULT_RANGE)[index] for size in sizes
                )
                for index in range(3)
            )
            ranges[value.name or ""] = (low, best, high)
    for name, (low_, best_, high_) in dimensions.items():
        if name not in known:
            raise ConfigError(f"--dim {name}: the graph has no such dimension (it has {', '.join(sorted(known))})")
        if not 1 <= low_ <= best_ <= high_:
            raise ConfigError(f"--dim {name}: {low_}:{best_}:{high_}; must be rising from 1 or more")
    return ranges
