"""The compiled kernels of a set of engines, as data, as `reports/layers.json` and as a table.

The builder's log (`builder_log.py`) and the engine inspector (`inspector.py`) both become this schema, so that
reports of different TensorRT versions, SMs and precisions compare.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtdecode.errors import BuildError

FORMAT_VERSION = 1

#: Bytes an element, by TensorRT's own names of types.
DTYPE_BYTES: dict[str, float] = {
    "Float": 4,
    "Half": 2,
    "BFloat16": 2,
    "FP8": 1,
    "Int8": 1,
    "UInt8": 1,
    "Bool": 1,
    "Int4": 0.5,
    "FP4": 0.5,
    "Int32": 4,
    "Int64": 8,
}

#: Entries of the layer list that launch no kernel: shape arithmetic on the host, waits between streams.
HOST_KINDS = frozenset({"shape_call", "signal", "wait"})

_PROFILE = re.compile(r" \[profile (\d+)\]")
_MYELIN_SUFFIX = re.compile(r"_myl(\d+)_\d+$")
_ONNX_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=\[ONNX Layer: |[\x1e\x1f]|$)")
_OPERATION = re.compile(r"[A-Z][a-z]*")


@dataclass(frozen=True, slots=True)
class KernelTensor:
    """What a kernel reads or writes. -1 in the shape is dynamic."""

    name: str
    dtype: str  # TensorRT's name: "Half", "FP8", ...
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry of the compiled layer list."""

    name: str
    kind: str  # "kgen" (generated), "gemm" (library), "runtime_fusion" (matmul with its epilogue), host kinds, ...
    profile: int
    inputs: tuple[KernelTensor, ...]
    constants: tuple[KernelTensor, ...]
    outputs: tuple[KernelTensor, ...]
    onnx_nodes: tuple[str, ...]  # names of the graph's nodes that this kernel computes, as the builder reports them
    tactic: str = ""
    stream: int = 0

    @property
    def launches(self) -> bool:
        """Whether the GPU runs something for this entry."""
        return self.kind not in HOST_KINDS

    @property
    def operations(self) -> tuple[str, ...]:
        """The compiler's own short names of what it fused ("Fc", "Add", "Cast"), read from a generated name."""
        match = re.match(r"__myl_([A-Za-z]+)", self.name)
        return tuple(_OPERATION.findall(match[1])) if match else ()

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Types that enter the kernel, without repetition, in order."""
        return tuple(dict.fromkeys(tensor.dtype for tensor in (*self.inputs, *self.constants)))

    @property
    def is_matmul(self) -> bool:
        return self.kind == "gemm" or "Fc" in self.operations or "MatrixMultiply" in self.kind


@dataclass(frozen=True, slots=True)
class Check:
    """One pattern in one profile of one engine."""

    pattern: str
    segment: str
    profile: int
    nodes: tuple[str, ...]
    holds: bool
    required: bool
    kernels: tuple[str, ...]  # where the nodes ended up


@dataclass(frozen=True, slots=True)
class SegmentLayers:
    """The kernels of one engine, all profiles."""

    segment: str  # "segment_000", or the ONNX file's stem
    kernels: tuple[Kernel, ...]
    operators: dict[str, str] = dataclasses.field(default_factory=dict)  # ONNX node name -> operator type
    checks: tuple[Check, ...] = ()

    def profile(self, index: int) -> tuple[Kernel, ...]:
        """The kernels of one profile that the GPU runs."""
        return tuple(kernel for kernel in self.kernels if kernel.profile == index and kernel.launches)


@dataclass(frozen=True, slots=True)
class LayerReport:
    """Every engine of one precision and SM."""

    precision: str
    sm: int
    flavour: str
    builder_version: str
    profiles: tuple[tuple[str, int], ...]  # name and the token count it was optimised for
    segments: tuple[SegmentLayers, ...]
    format_version: int = FORMAT_VERSION


def split_profile(name: str) -> tuple[str, int]:
    """Takes " [profile 1]" out of a name; the number is 0 where there is none."""
    match = _PROFILE.search(name)
    return (_PROFILE.sub("", name), int(match[1])) if match else (name, 0)


def onnx_nodes_of(metadata: str) -> tuple[str, ...]:
    """Node names from "[ONNX Layer: a][ONNX Layer: b]" (some versions put a separator character between)."""
    return tuple(dict.fromkeys(_ONNX_NODE.findall(metadata.strip())))


def with_profiles(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Settles each kernel's profile and takes the builder's running numbers out of its name.

    Names end in `_myl<graph>_<number>`, one graph a profile; only some kernels of a graph say "[profile 1]", so the
    others are given what their graph's neighbours say.
    """
    kernels = tuple(kernels)
    profile_of_graph: dict[str, int] = {}
    for kernel in kernels:
        if (match := _MYELIN_SUFFIX.search(kernel.name)) is not None:
            profile_of_graph[match[1]] = max(profile_of_graph.get(match[1], 0), kernel.profile)
    settled = []
    for kernel in kernels:
        match = _MYELIN_SUFFIX.search(kernel.name)
        if match is None:
            settled.append(kernel)
            continue
        name = kernel.name[: match.start()]
        settled.append(dataclasses.replace(kernel, name=name, profile=profile_of_graph[match[1]]))
    return tuple(settled)


def write_report(path: Path, report: LayerReport) -> None:
    """Writes the report as JSON, one kernel a line, so that two reports also compare with a text diff."""
    head = dataclasses.asdict(dataclasses.replace(report, segments=()))
    head.pop("segments")
    lines = [f' "{name}": {json.dumps(value)},' for name, value in sorted(head.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.write("{\n" + "\n".join(lines) + '\n "segments": [\n')
        for number, segment in enumerate(report.segments):
            rows = ",\n    ".join(json.dumps(dataclasses.asdict(kernel)) for kernel in segment.kernels)
            checks = ",\n    ".join(json.dumps(dataclasses.asdict(check)) for check in segment.checks)
            end = "\n" if number == len(report.segments) - 1 else ",\n"
            file.write(
                f'  {{"segment": {json.dumps(segment.segment)}, "operators": {json.dumps(segment.operators)},\n'
                f'   "kernels": [\n    {rows}],\n   "checks": [\n    {checks}]}}{end}'
            )
        file.write(" ]\n}\n")


def read_report(path: Path) -> LayerReport:
    """Reads `reports/layers.json`.

    Raises:
        BuildError: missing, not JSON, another format version or form.
    """
    try:
        raw: dict[str, Any] = json.loads(path.read_text("utf-8"))
        version = raw["format_version"]
        if version != FORMAT_VERSION:
            raise BuildError(f"{path}: format_version {version}, this trtdecode reads {FORMAT_VERSION}; build again")
        segments = tuple(
            SegmentLayers(
                entry["segment"],
                tuple(_kernel_of(kernel) for kernel in entry["kernels"]),
                dict(entry["operators"]),
                tuple(_check_of(check) for check in entry["checks"]),
            )
            for entry in raw["segments"]
        )
        profiles = tuple((str(name), int(tokens)) for name, tokens in raw["profiles"])
        return LayerReport(**{**raw, "segments": segments, "profiles": profiles})
    except FileNotFoundError:
        raise BuildError(f"{path}: not found; `trtdecode build` writes it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(f"{path}: not a layer report ({error}); build again") from error


def _kernel_of(entry: dict[str, Any]) -> Kernel:
    fields = dict(entry)
    for name in ("inputs", "constants", "outputs"):
        fields[name] = tuple(KernelTensor(t["name"], t["dtype"], tuple(t["shape"])) for t in entry[name])
    fields["onnx_nodes"] = tuple(entry["onnx_nodes"])
    return Kernel(**fields)


def _check_of(entry: dict[str, Any]) -> Check:
    return Check(**{**entry, "nodes": tuple(entry["nodes"]), "kernels": tuple(entry["kernels"])})
