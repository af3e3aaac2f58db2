"""The two ends of a decoder that every family shares: tokens to hidden states, hidden states to logits."""

from __future__ import annotations

import onnx_ir as ir

from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig
from trtbuild.graph.linear import embedding, linear, multiply
from trtbuild.graph.matrix import Matrix
from trtbuild.graph.step import Step


def embed_tokens(g: GraphBuilder, step: Step, config: DecoderConfig, name: str) -> tuple[Matrix, ir.Value]:
    """The stored embedding and this step's rows of it, f32[T, hidden]."""
    with g.scope("embed"):
        table = embedding(g, name, config.vocab_size, config.hidden_size)
        return table, table.gather(g, step.input_ids)


def find_prefix(g: GraphBuilder, prefix: str, known: str) -> str:
    """`prefix`, or "" for checkpoints saved from the bare model, told apart by where the tensor `known` is."""
    return prefix if f"{prefix}{known}" in g.weights or known not in g.weights else ""


def select_rows(g: GraphBuilder, step: Step, h: ir.Value) -> ir.Value:
    """The rows whose logits are wanted, f32[S, hidden]: norm and head then work on these only."""
    return g.op("Gather", h, step.logit_indices, axis=0)


def lm_head(g: GraphBuilder, h: ir.Value, config: DecoderConfig, table: Matrix, name: str) -> ir.Value:
    """Logits f32[S, vocab] through the tied embedding, or through `<name>.weight`."""
    if config.tied_head:
        return multiply(g, h, table)
    return linear(g, h, name, config.hidden_size, config.vocab_size)


def softcap(g: GraphBuilder, x: ir.Value, cap: float) -> ir.Value:
    """cap * tanh(x / cap); x itself where cap is 0."""
    if not cap:
        return x
    return g.op("Mul", g.op("Tanh", g.op("Div", x, g.scalar(cap))), g.scalar(cap))
