"""Rotary position embedding in the graph: cos and sin once, a rotation of Q and K in each layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtbuild.graph.attention import Projected
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig
from trtbuild.graph.rope_frequencies import RopeConfig


@dataclass(frozen=True)
class Rotary:
    """cos and sin of this step's positions, shared by all layers."""

    config: RopeConfig
    cos: ir.Value  # f32[T, 1, rotary_dim / 2]
    sin: ir.Value

    def rotate(self, g: GraphBuilder, x: ir.Value, num_heads: int, head_dim: int) -> ir.Value:
        """Rotates each head of x[T, num_heads * head_dim]; dimensions of a head past rotary_dim stay."""
        partial_dim = 0 if self.config.rotary_dim == head_dim else self.config.rotary_dim
        # Tokens are the batch and the sequence has length 1, so no transpose is needed around the operator.
        rotated = g.op(
            "RotaryEmbedding",
            g.op("Unsqueeze", x, g.ints(1)),
            self.cos,
            self.sin,
            num_heads=num_heads,
            rotary_embedding_dim=partial_dim,
            interleaved=int(self.config.interleaved),
        )
        return g.op("Squeeze", rotated, g.ints(1))


def rotary(g: GraphBuilder, config: RopeConfig, positions: ir.Value) -> Rotary:
    """cos and sin for `positions` i64[T], computed in float32 as transformers does."""
    with g.scope("rotary"):
        as_float = g.op("Cast", positions, to=int(ir.DataType.FLOAT))
        column = g.op("Unsqueeze", as_float, g.ints(1, 2))
        angles = g.op("Mul", column, g.constant(np.array(config.inv_freq, np.float32)[None, None], np.float32))
        cos, sin = g.op("Cos", angles), g.op("Sin", angles)
        if config.attention_factor != 1.0:
            factor = g.scalar(config.attention_factor)
            cos, sin = g.op("Mul", cos, factor), g.op("Mul", sin, factor)
    return Rotary(config, cos, sin)


def rotate_heads(g: GraphBuilder, heads: Projected, config: DecoderConfig, angles: Rotary) -> Projected:
    """Q and K turned by their positions; V as it is."""
    return Projected(
        angles.rotate(g, heads.q, config.num_heads, config.head_dim),
        angles.rotate(g, heads.k, config.num_kv_heads, config.head_dim),
        heads.v,
    )
