"""A layer report for people: which kernels run, what each one computes and in which types; and two reports compared.

A decoder's segments repeat: those that compile to the same kernels are shown once, layer numbers taken out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trtbuild.engine.layer_report import Kernel, LayerReport, SegmentLayers

_LAYER_NUMBER = re.compile(r"\blayers\.\d+/")


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel as far as it can be compared between builds: compilers give their kernels other names each time."""

    kind: str
    operators: tuple[str, ...]  # ONNX operators it computes
    inputs: tuple[str, ...]  # types
    outputs: tuple[str, ...]  # types
    nodes: tuple[str, ...]  # ONNX nodes, without layer numbers

    def __str__(self) -> str:
        types = f"{','.join(self.inputs)} -> {','.join(self.outputs)}"
        return f"{self.kind:<16} {' + '.join(self.operators) or '-':<44} {types:<28} {' '.join(self.nodes)}"


def table_lines(report: LayerReport) -> Iterator[str]:
    """The whole report, one line a kernel, equal segments together."""
    builder = f"{report.flavour} {report.builder_version}"
    yield f"{report.precision} for SM {report.sm}, {builder}, {len(report.segments)} engines"
    for number, (name, num_tokens) in enumerate(report.profiles):
        yield ""
        yield f"profile {name} (optimised for {num_tokens} tokens)"
        for names, rows in _equal_segments(report, number):
            yield f"  {_span(names)}: {len(rows)} kernels"
            yield from (f"    {row}" for row in rows)


def diff_lines(old: LayerReport, new: LayerReport) -> Iterator[str]:
    """What is in one report and not in the other: counts of equal kernels, profile by profile. Empty: the same."""
    names = [name for name, _ in old.profiles]
    for name in dict.fromkeys([*names, *(name for name, _ in new.profiles)]):
        before, after = _counts(old, name), _counts(new, name)
        if before == after:
            continue
        yield f"profile {name}: {before.total()} -> {after.total()} kernels"
        for row, count in (before - after).items():
            yield f"  - {count:3d} x {row}"
        for row, count in (after - before).items():
            yield f"  + {count:3d} x {row}"


def row_of(kernel: Kernel, segment: SegmentLayers) -> Row:
    """What of a kernel can be compared."""
    nodes = tuple(dict.fromkeys(_LAYER_NUMBER.sub("", node) for node in kernel.onnx_nodes))
    return Row(
        kernel.kind,
        tuple(segment.operators.get(node, "?") for node in kernel.onnx_nodes),
        kernel.dtypes,
        tuple(dict.fromkeys(tensor.dtype for tensor in kernel.outputs)),
        nodes,
    )


def _equal_segments(report: LayerReport, profile: int) -> list[tuple[list[str], list[Row]]]:
    """Neighbouring segments with the same kernels: (their names, the kernels)."""
    groups: list[tuple[list[str], list[Row]]] = []
    for segment in report.segments:
        rows = [row_of(kernel, segment) for kernel in segment.profile(profile)]
        if groups and groups[-1][1] == rows:
            groups[-1][0].append(segment.segment)
        else:
            groups.append(([segment.segment], rows))
    return groups


def _span(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} alike)"


def _counts(report: LayerReport, profile_name: str) -> Counter[Row]:
    numbers = [number for number, (name, _) in enumerate(report.profiles) if name == profile_name]
    return Counter(
        row_of(kernel, segment)
        for number in numbers
        for segment in report.segments
        for kernel in segment.profile(number)
    )
