"""Every rewrite rule, in the order in which they run. One rule = one file = one test.

What is here is what exporters leave in a form that TensorRT cannot build, does not fuse, or computes less exactly.
"""

from __future__ import annotations

from types import ModuleType

import onnx_ir as ir
from onnxscript.rewriter import pattern

from trtbuild.rewrite import (
    cast_scaled_weight,
    flattened_linear,
    float_zero_points,
    gelu_erf,
    gelu_tanh,
    layer_norm,
    rms_norm,
    silu,
    softmax,
    transposed_weight,
    unfused_blocks,
    zero_point_correction,
)

RULES: tuple[ModuleType, ...] = (
    cast_scaled_weight,
    zero_point_correction,
    float_zero_points,
    transposed_weight,
    flattened_linear,
    layer_norm,
    rms_norm,
    gelu_erf,
    gelu_tanh,
    silu,
    softmax,
)

#: Those that write INT4 where the graph had none: for INT4 engines.
INT4_RULES: tuple[ModuleType, ...] = (unfused_blocks,)


def rewrite(model: ir.Model, modules: tuple[ModuleType, ...] = RULES) -> dict[str, int]:
    """Applies the rules in place; returns how often each did, by the name of its file.

    New nodes are named after the values that they give, so that reports can point at them.
    """
    names = {node.name for node in model.graph}
    applied: dict[str, int] = {}
    for module in modules:
        count = pattern.RewriteRuleSet(module.rules()).apply_to_model(model)
        if count:
            applied[module.__name__.rpartition(".")[2]] = count
    if applied:
        model.graph.sort()  # a rule may have used what another made, further on, of the same input
    for node in model.graph:
        if not node.name or node.name not in names:
            node.name = node.outputs[0].name
    return applied
