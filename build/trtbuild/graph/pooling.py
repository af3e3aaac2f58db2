"""From token states to one vector a text."""

from __future__ import annotations

import onnx_ir as ir

from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.encoder_config import EncoderConfig
from trtbuild.graph.encoder_step import HIDDEN_SCORE, EncoderStep

#: Smallest length a vector is divided by: torch's `normalize` default, far below any real one.
TINY_LENGTH = 1e-12


def pool(g: GraphBuilder, step: EncoderStep, config: EncoderConfig, h: ir.Value) -> ir.Value:
    """f32[B, hidden] from token states h f32[T, hidden], as `pooling` and `normalize` say."""
    with g.scope("pool"):
        pooled = {"cls": _first, "mean": _mean, "max": _max}[config.pooling](g, step, h)
        return _unit(g, pooled) if config.normalize else pooled


def first_token(g: GraphBuilder, step: EncoderStep, h: ir.Value) -> ir.Value:
    """f32[B, hidden]: the state of each text's first token ([CLS])."""
    begins = g.op("Slice", step.query_begins, g.ints(0), g.ints(-1), g.ints(0))
    return g.op("Gather", h, begins, axis=0)


_first = first_token


def _mean(g: GraphBuilder, step: EncoderStep, h: ir.Value) -> ir.Value:
    present = g.op("Unsqueeze", step.pad_mask, g.ints(2))
    total = g.op("ReduceSum", g.op("Mul", _padded(g, step, h), present), g.ints(1), keepdims=0)
    return g.op("Div", total, g.op("ReduceSum", step.pad_mask, g.ints(1), keepdims=1))


def _max(g: GraphBuilder, step: EncoderStep, h: ir.Value) -> ir.Value:
    hidden = g.op("Mul", g.op("Sub", g.scalar(1.0), step.pad_mask), g.scalar(HIDDEN_SCORE))
    shifted = g.op("Add", _padded(g, step, h), g.op("Unsqueeze", hidden, g.ints(2)))
    return g.op("ReduceMax", shifted, g.ints(1), keepdims=0)


def _padded(g: GraphBuilder, step: EncoderStep, h: ir.Value) -> ir.Value:
    return g.op("Gather", h, step.pad_indices, axis=0)


def _unit(g: GraphBuilder, vectors: ir.Value) -> ir.Value:
    length = g.op("ReduceL2", vectors, g.ints(1), keepdims=1)
    return g.op("Div", vectors, g.op("Max", length, g.scalar(TINY_LENGTH)))
