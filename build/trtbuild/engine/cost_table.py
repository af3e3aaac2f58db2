"""What the kernels of a report must at least cost on a GPU, and which named fusions hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trtdecode.plan.devices import Device

from trtbuild.engine.layer_report import LayerReport
from trtbuild.engine.layer_table import Row, row_of
from trtbuild.engine.roofline import KernelCost, kernel_cost


@dataclass(frozen=True, slots=True)
class PassCost:
    """All kernels of one profile, one after another, at the number of tokens it was tuned for."""

    num_kernels: int
    num_bytes: float
    flops: float
    seconds: float  # the sum of the kernels' lower bounds

    def __str__(self) -> str:
        return (
            f"{self.num_kernels} kernels, {self.num_bytes / 1e6:.1f} MB, {self.flops / 1e9:.2f} GFLOP, "
            f"at least {self.seconds * 1e6:.0f} us"
        )


def cost_lines(report: LayerReport, device: Device) -> Iterator[str]:
    """Per profile the whole pass, then its kernels by cost; equal kernels of all layers are one line."""
    for number, (name, num_tokens) in enumerate(report.profiles):
        costs = _costs(report, number, device)
        yield f"profile {name} at {num_tokens} tokens on {device.name}: {pass_cost(report, number, device)}"
        ordered = sorted(costs.items(), key=lambda item: -sum(cost.seconds for cost in item[1]))
        for row, members in ordered:
            bound = "memory" if members[0].is_memory_bound else "arithmetic"
            yield (
                f"  {sum(cost.seconds for cost in members) * 1e6:8.1f} us  {len(members):3d} x "
                f"{members[0].num_bytes / 1e3:10.1f} kB {members[0].flops / 1e6:10.1f} MFLOP  {bound:<10}  "
                f"{' + '.join(row.operators) or row.kind} {','.join(row.inputs)} -> {','.join(row.outputs)}"
            )


def cost_diff_lines(old: LayerReport, new: LayerReport, device: Device) -> Iterator[str]:
    """Bytes, operations and bounds of two reports side by side, profile by profile."""
    for number, (name, num_tokens) in enumerate(old.profiles):
        if number < len(new.profiles):
            before, after = pass_cost(old, number, device), pass_cost(new, number, device)
            ratio = after.seconds / before.seconds if before.seconds else 1.0
            yield f"profile {name} at {num_tokens} tokens on {device.name}: {ratio:.2f} of the bound"
            yield f"  - {before}"
            yield f"  + {after}"


def pass_cost(report: LayerReport, profile: int, device: Device) -> PassCost:
    """The sums over every kernel of one profile."""
    costs = [cost for members in _costs(report, profile, device).values() for cost in members]
    return PassCost(
        len(costs),
        sum(cost.num_bytes for cost in costs),
        sum(cost.flops for cost in costs),
        sum(cost.seconds for cost in costs),
    )


def fusion_lines(report: LayerReport) -> Iterator[str]:
    """For each named pattern: how often it holds, and where it ended up when it does not."""
    totals: Counter[str] = Counter()
    held: Counter[str] = Counter()
    required: set[str] = set()
    for segment in report.segments:
        for check in segment.checks:
            totals[check.pattern] += 1
            held[check.pattern] += check.holds
            if check.required:
                required.add(check.pattern)
    for name in sorted(totals):
        yield f"{name}: {held[name]} of {totals[name]}" + (" (required)" if name in required else " (reported)")


def _costs(report: LayerReport, profile: int, device: Device) -> dict[Row, list[KernelCost]]:
    num_tokens = report.profiles[profile][1]
    costs: dict[Row, list[KernelCost]] = {}
    for segment in report.segments:
        for kernel in segment.profile(profile):
            costs.setdefault(row_of(kernel, segment), []).append(kernel_cost(kernel, num_tokens, device))
    return costs
