"""Normalisation layers over the last axis."""

from __future__ import annotations

import onnx_ir as ir

from trtbuild.graph.builder import GraphBuilder


def rms_norm(
    g: GraphBuilder, x: ir.Value, name: str, width: int, epsilon: float, *, weight_offset: float = 0.0
) -> ir.Value:
    """x / sqrt(mean(x^2) + epsilon) * (w + weight_offset). Gemma stores w - 1, so its offset is 1."""
    scale = g.weight(f"{name}.weight", (width,), offset=weight_offset)
    return g.op("RMSNormalization", x, scale, axis=-1, epsilon=epsilon)


def layer_norm(g: GraphBuilder, x: ir.Value, name: str, width: int, epsilon: float) -> ir.Value:
    """(x - mean) / sqrt(var + epsilon) * w + b; a norm without bias has none in the checkpoint."""
    inputs = [x, g.weight(f"{name}.weight", (width,))]
    if f"{name}.bias" in g.weights:
        inputs.append(g.weight(f"{name}.bias", (width,)))
    return g.op("LayerNormalization", *inputs, axis=-1, epsilon=epsilon)
