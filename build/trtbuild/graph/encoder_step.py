"""An encoder graph's inputs (trtdecode.executor.encoder_base) and the one block that needs padding: attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from trtdecode.executor.encoder_base import ENCODER_INPUTS

from trtbuild.graph.attention import Projected
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.encoder_config import EncoderConfig

I32, I64, F32 = ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT

#: Added to the scores of keys that must not be seen: exp() of it is 0 in f32 and in f16, and it is finite in both.
HIDDEN_SCORE = -3e4

_TYPES: dict[str, tuple[ir.DataType, list[int | str]]] = {
    "input_ids": (I64, ["T"]),
    "positions": (I64, ["T"]),
    "token_types": (I64, ["T"]),
    "query_begins": (I32, ["B_plus_1"]),
    "pad_indices": (I64, ["B", "L"]),
    "unpad_indices": (I64, ["T"]),
    "pad_mask": (F32, ["B", "L"]),
}


@dataclass(frozen=True)
class EncoderStep:
    """Graph inputs, named as in the contract."""

    input_ids: ir.Value
    positions: ir.Value
    token_types: ir.Value
    query_begins: ir.Value
    pad_indices: ir.Value
    unpad_indices: ir.Value
    pad_mask: ir.Value


def declare_encoder_step(g: GraphBuilder) -> EncoderStep:
    """Declares the inputs in the contract's order."""
    return EncoderStep(**{name: g.input(name, *_TYPES[name]) for name in ENCODER_INPUTS})


def full_mask(g: GraphBuilder, step: EncoderStep) -> ir.Value:
    """f32[B, 1, 1, L] to add to the scores: 0 for tokens, HIDDEN_SCORE for padding."""
    with g.scope("mask"):
        hidden = g.op("Sub", g.scalar(1.0), step.pad_mask)
        return g.op("Unsqueeze", g.op("Mul", hidden, g.scalar(HIDDEN_SCORE)), g.ints(1, 2))


def local_mask(g: GraphBuilder, step: EncoderStep, reach: int) -> ir.Value:
    """f32[B, 1, L, L]: also hides keys further than `reach` tokens away, to either side."""
    with g.scope("mask"):
        positions = g.op("Gather", step.positions, step.pad_indices, axis=0)
        across, down = g.op("Unsqueeze", positions, g.ints(1)), g.op("Unsqueeze", positions, g.ints(2))
        distance = g.op("Abs", g.op("Sub", down, across))
        far = g.op("Cast", g.op("Greater", distance, g.constant(reach, np.int64)), to=int(F32))
        hidden = g.op("Unsqueeze", g.op("Mul", far, g.scalar(HIDDEN_SCORE)), g.ints(1))
        return g.op("Add", hidden, full_mask(g, step))


def padded_attention(
    g: GraphBuilder, step: EncoderStep, config: EncoderConfig, heads: Projected, mask: ir.Value
) -> ir.Value:
    """Every token attends to every token of its text that `mask` shows: f32[T, hidden] from q, k, v f32[T, hidden]."""
    query, key, value = (_pad(g, step, config, part) for part in (heads.q, heads.k, heads.v))
    scaled = g.op("Mul", query, g.scalar(config.head_dim**-0.5))
    scores = g.op("MatMul", scaled, g.op("Transpose", key, perm=(0, 1, 3, 2)))
    shares = g.op("Softmax", g.op("Add", scores, mask), axis=-1)
    attended = g.op("Transpose", g.op("MatMul", shares, value), perm=(0, 2, 1, 3))
    flat = g.op("Reshape", attended, g.ints(-1, config.hidden_size))
    return g.op("Gather", flat, step.unpad_indices, axis=0)


def _pad(g: GraphBuilder, step: EncoderStep, config: EncoderConfig, x: ir.Value) -> ir.Value:
    """f32[B, heads, L, head_dim] from x f32[T, hidden]."""
    laid_out = g.op("Gather", x, step.pad_indices, axis=0)
    heads = g.op("Reshape", laid_out, g.ints(0, 0, config.num_heads, config.head_dim))
    return g.op("Transpose", heads, perm=(0, 2, 1, 3))
