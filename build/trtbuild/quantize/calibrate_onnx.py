"""Calibration of any ONNX graph: runs samples through ONNX Runtime and collects what enters each matmul."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from trtdecode.errors import BuildError, ConfigError

from trtbuild.quantize.calibrate import input_widths
from trtbuild.quantize.segment_runner import open_session
from trtbuild.quantize.statistics import InputStatistics

Sample = Mapping[str, npt.NDArray[Any]]  # input name -> array


def read_samples(paths: Iterable[Path]) -> list[Sample]:
    """One sample a .npz file, arrays named like the graph's inputs. Raises ConfigError naming the file."""
    samples: list[Sample] = []
    for path in paths:
        try:
            with np.load(path, allow_pickle=False) as content:
                samples.append({name: content[name] for name in content.files})
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: not readable as a .npz of inputs ({error})") from error
    return samples


def calibrate_onnx(
    model: ir.Model, samples: Sequence[Sample], *, with_hessians: bool = False
) -> dict[str, InputStatistics]:
    """Statistics of every value that enters a matmul with a stored weight.

    Raises:
        BuildError: no samples, or an input is missing in one.
    """
    widths = input_widths(model.graph)
    if not samples:
        raise BuildError("calibration needs samples: give .npz files of inputs with --samples")
    found = {name: InputStatistics(name, width, with_hessian=with_hessians) for name, width in widths.items()}
    computed = [name for name in widths if name not in {value.name for value in model.graph.inputs}]
    for sample, values in zip(samples, run_samples(model, samples, computed), strict=True):
        for name, statistics in found.items():
            statistics.add(np.asarray(values[name] if name in values else sample[name], np.float32))
    return found


def run_samples(
    model: ir.Model, samples: Sequence[Sample], outputs: Sequence[str]
) -> Iterable[dict[str, npt.NDArray[Any]]]:
    """The named values for each sample; they need not be graph outputs."""
    graph = model.graph
    by_name = {value.name: value for node in graph for value in node.outputs}
    extra = [by_name[name] for name in outputs if not by_name[name].is_graph_output()]
    with tempfile.TemporaryDirectory(prefix="trtdecode-") as scratch:
        path = Path(scratch) / "probe.onnx"
        graph.outputs.extend(extra)
        try:
            ir.save(model, path, external_data="probe.data")
        finally:
            for _ in extra:  # one by one: a slice would leave the values marked as outputs
                graph.outputs.pop()
        session = open_session(path)
        names = [value.name for value in session.get_inputs()]
        for number, sample in enumerate(samples):
            missing = [name for name in names if name not in sample]
            if missing:
                raise BuildError(f"sample {number}: lacks input {missing[0]!r} (has {', '.join(sorted(sample))})")
            feeds = {name: sample[name] for name in names}
            yield dict(zip(outputs, session.run(list(outputs), feeds), strict=True)) if outputs else {}
