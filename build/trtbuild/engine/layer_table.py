"""Layer reports for people: one report as a table, two as a difference (`trtdecode layers [--diff A B]`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trtdecode.plan.devices import Device

from trtbuild.engine.layer_report import Kernel, LayerReport, SegmentLayers
from trtbuild.engine.roofline import device_for, kernel_cost, total_seconds


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One line of the table. Segments with the same kernels are one group."""

    segments: str  # "segment_001 x 29"
    kernel: str
    kind: str
    operators: str  # ONNX operators fused, "MatMul + Add"
    dtypes: str  # "Half, Int8 -> Half"
    kilobytes: float
    megaflops: float
    microseconds: float  # the roofline's lower bound


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One kernel (or run of kernels) that differs between two reports."""

    segment: str
    change: str  # "-" only in A, "+" only in B
    kernel: str
    operators: str
    dtypes: str


def table_rows(report: LayerReport, *, profile: int = 0, device_name: str = "") -> list[LayerRow]:
    """The kernels of one profile, at the token count that it was tuned for.

    Raises:
        ConfigError: no device for the report's SM, or none of that name.
    """
    device = device_for(report.sm, device_name)
    num_tokens = report.profiles[profile][1]
    rows = []
    for segment, count in _grouped(report, profile):
        label = f"{segment.segment} x {count}" if count > 1 else segment.segment
        rows += [_row(label, kernel, segment, num_tokens, device) for kernel in segment.profile(profile)]
    return rows


def summary(report: LayerReport, *, profile: int = 0, device_name: str = "") -> str:
    """One line: kernels, what of the expectations holds, and the roofline's bound for the whole pass."""
    device = device_for(report.sm, device_name)
    name, num_tokens = report.profiles[profile]
    kernels = [kernel for segment in report.segments for kernel in segment.profile(profile)]
    checks = [check for segment in report.segments for check in segment.checks if check.profile == profile]
    held = sum(check.holds for check in checks)
    microseconds = total_seconds(kernels, num_tokens, device) * 1e6
    return (
        f"{report.precision} for SM {report.sm} by {report.flavour} {report.builder_version}, profile {name} at "
        f"{num_tokens} tokens: {len(kernels)} kernels in {len(report.segments)} engines, {held} of {len(checks)} "
        f"expectations hold, at least {microseconds:.0f} us on {device.name}"
    )


def fusion_counts(report: LayerReport) -> list[tuple[str, int, int, bool]]:
    """For each named pattern: how often it holds, of how many, and whether a build requires it."""
    totals: Counter[str] = Counter()
    held: Counter[str] = Counter()
    required: dict[str, bool] = {}
    for segment in report.segments:
        for check in segment.checks:
            totals[check.pattern] += 1
            held[check.pattern] += check.holds
            required[check.pattern] = required.get(check.pattern, False) or check.required
    return [(name, held[name], totals[name], required[name]) for name in sorted(totals)]


def diff_rows(before: LayerReport, after: LayerReport, *, profile: int = 0) -> list[DiffRow]:
    """Kernels that only one of two reports has, segment by segment, in order.

    A kernel is the same in both when it computes the same ONNX nodes in the same types. Segments that differ in the
    same way are listed once.
    """
    rows: list[DiffRow] = []
    seen: set[tuple[tuple[str, str, str], ...]] = set()
    pairs = {segment.segment: segment for segment in after.segments}
    for segment in before.segments:
        other = pairs.pop(segment.segment, None)
        changes = _differences(segment, other, profile)
        signature = tuple((row.change, row.operators, row.dtypes) for row in changes)
        if changes and signature not in seen:
            seen.add(signature)
            rows += changes
    for segment in pairs.values():
        rows += [_diff_row(segment, "+", kernel) for kernel in segment.profile(profile)]
    return rows


def _differences(before: SegmentLayers, after: SegmentLayers | None, profile: int) -> list[DiffRow]:
    left = before.profile(profile)
    right = after.profile(profile) if after is not None else ()
    left_keys, right_keys = Counter(map(_identity, left)), Counter(map(_identity, right))
    only_left, only_right = left_keys - right_keys, right_keys - left_keys
    rows = [_diff_row(before, "-", kernel) for kernel in left if only_left[_identity(kernel)]]
    if after is not None:
        rows += [_diff_row(after, "+", kernel) for kernel in right if only_right[_identity(kernel)]]
    return rows


def _identity(kernel: Kernel) -> tuple[frozenset[str], tuple[str, ...], str]:
    return frozenset(kernel.onnx_nodes), kernel.dtypes, ",".join(sorted({one.dtype for one in kernel.outputs}))


def _grouped(report: LayerReport, profile: int) -> list[tuple[SegmentLayers, int]]:
    """Segments with equal lists of kernels (all middle layers), each group by its first."""
    groups: dict[tuple[object, ...], list[SegmentLayers]] = {}
    for segment in report.segments:
        signature = tuple(
            (kernel.kind, _operators(kernel, segment), _dtypes(kernel)) for kernel in segment.profile(profile)
        )
        groups.setdefault(signature, []).append(segment)
    return [(members[0], len(members)) for members in groups.values()]


def _row(label: str, kernel: Kernel, segment: SegmentLayers, num_tokens: int, device: Device) -> LayerRow:
    cost = kernel_cost(kernel, num_tokens, device)
    return LayerRow(
        label,
        kernel.name,
        kernel.kind,
        _operators(kernel, segment),
        _dtypes(kernel),
        cost.num_bytes / 1e3,
        cost.flops / 1e6,
        cost.seconds * 1e6,
    )


def _diff_row(segment: SegmentLayers, change: str, kernel: Kernel) -> DiffRow:
    return DiffRow(segment.segment, change, kernel.name, _operators(kernel, segment), _dtypes(kernel))


def _operators(kernel: Kernel, segment: SegmentLayers) -> str:
    """The ONNX operators in a kernel; what the builder made itself (a transpose) has its own short names."""
    names = [segment.operators.get(node, node) for node in kernel.onnx_nodes]
    return " + ".join(names or kernel.operations)


def _dtypes(kernel: Kernel) -> str:
    outputs: Sequence[str] = tuple(dict.fromkeys(tensor.dtype for tensor in kernel.outputs))
    return f"{', '.join(kernel.dtypes)} -> {', '.join(outputs)}"
