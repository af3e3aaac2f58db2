"""Fusion as a fact: checks the compiled kernels of an engine against the patterns of its graph."""

from __future__ import annotations

from collections.abc import Sequence

from trtdecode.errors import BuildError

from trtbuild.engine.layer_report import Check, Kernel
from trtbuild.engine.patterns import NORMS, Pattern, Rule


def check_patterns(
    segment: str, patterns: Sequence[Pattern], kernels: Sequence[Kernel], operators: dict[str, str]
) -> list[Check]:
    """Checks every pattern in every profile.

    Args:
        operators: ONNX node name -> operator type, of the graph that was built.
    """
    checks = []
    for profile in sorted({kernel.profile for kernel in kernels}):
        running = [kernel for kernel in kernels if kernel.profile == profile and kernel.launches]
        for pattern in patterns:
            holders = [kernel for kernel in running if set(kernel.onnx_nodes) & set(pattern.nodes)]
            checks.append(
                Check(
                    pattern.name,
                    segment,
                    profile,
                    pattern.nodes,
                    _holds(pattern, holders, operators),
                    pattern.required,
                    tuple(kernel.name for kernel in holders),
                )
            )
    return checks


def require(checks: Sequence[Check]) -> None:
    """Raises BuildError naming the first required pattern that does not hold, and how many there are."""
    broken = [check for check in checks if check.required and not check.holds]
    if broken:
        first = broken[0]
        raise BuildError(
            f"{first.segment}: {first.pattern} is not fused (profile {first.profile}): {', '.join(first.nodes)} became "
            f"{', '.join(first.kernels) or 'no kernel'}; {len(broken)} required fusions are missing. "
            "See `trtdecode layers`, or build with --allow-unfused"
        )


def _holds(pattern: Pattern, holders: list[Kernel], operators: dict[str, str]) -> bool:
    wanted = set(pattern.nodes)
    match pattern.rule:
        case Rule.TOGETHER:
            return any(wanted <= set(kernel.onnx_nodes) for kernel in holders)
        case Rule.ABSORBED:
            return _is_absorbed(pattern.nodes[0], holders, operators)
        case Rule.IN_MATMUL:
            return any(kernel.is_matmul and wanted <= set(kernel.onnx_nodes) for kernel in holders)
        case Rule.MATMUL_TYPE:
            return any(kernel.is_matmul and pattern.dtype in kernel.dtypes for kernel in holders)
        case Rule.COMPUTES_IN:
            # A node that became no kernel (a split read in place) computes nothing in a wrong type.
            return all(_handles(kernel, pattern.dtype) for kernel in holders)


def _is_absorbed(node: str, holders: list[Kernel], operators: dict[str, str]) -> bool:
    for kernel in holders:
        if node in kernel.onnx_nodes and (
            kernel.is_matmul or any(operators.get(other) in NORMS for other in kernel.onnx_nodes)
        ):
            return True
    return False


def _handles(kernel: Kernel, dtype: str) -> bool:
    """Whether a kernel reads or writes a type, or casts to or from it inside (then it holds one of our Cast nodes)."""
    cast = {"Float": "/to_float", "Half": "/to_float16", "BFloat16": "/to_bfloat16"}[dtype]
    types = {tensor.dtype for tensor in (*kernel.inputs, *kernel.constants, *kernel.outputs)}
    return dtype in types or any(node.endswith(cast) for node in kernel.onnx_nodes)
