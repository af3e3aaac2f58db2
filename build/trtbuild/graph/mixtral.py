"""Mixtral: Llama with several gated MLPs ("experts") a layer, of which a router picks two for each token.

Written with standard operators only: every expert runs on every token and the router's weights, zero for all but the
chosen, scale what they add. Exact on every runtime, at the price of the experts that were not chosen.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig, required
from trtbuild.graph.family import Family
from trtbuild.graph.linear import all_reduce, linear, merged_linear
from trtbuild.graph.llama import attention_block, build_decoder, read_config
from trtbuild.graph.mlp import activation, gated_output
from trtbuild.graph.norm import rms_norm
from trtbuild.graph.rope import Rotary
from trtbuild.graph.step import Step


def build(g: GraphBuilder, step: Step, config: DecoderConfig) -> ir.Value:
    """Logits f32[S, vocab]."""
    return build_decoder(g, step, config, _decoder_layer)


def _decoder_layer(
    g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, angles: Rotary
) -> ir.Value:
    h = attention_block(g, step, config, layer, h, angles)
    name = f"model.layers.{layer}"
    with g.scope("experts"):
        x = rms_norm(g, h, f"{name}.post_attention_layernorm", config.hidden_size, config.norm_epsilon)
        return g.op("Add", h, _mixture(g, config, x, f"{name}.block_sparse_moe"))


def _mixture(g: GraphBuilder, config: DecoderConfig, x: ir.Value, name: str) -> ir.Value:
    """Sum over experts of router weight times expert output, f32[T, hidden]."""
    num_experts = required(config.raw, "num_local_experts")
    gates = _router(g, config, x, name, num_experts)
    shares = g.multi_op("Split", gates, g.ints(*[1] * num_experts), num_outputs=num_experts, axis=1)
    total: ir.Value | None = None
    for expert, share in enumerate(shares):
        with g.scope(str(expert)):
            part = g.op("Mul", _expert(g, config, x, f"{name}.experts.{expert}"), share)
            total = part if total is None else g.op("Add", total, part)
    assert total is not None
    return total if config.inner.is_whole else all_reduce(g, total, config.hidden_size)


def _router(g: GraphBuilder, config: DecoderConfig, x: ir.Value, name: str, num_experts: int) -> ir.Value:
    """f32[T, experts]: softmax weights of the chosen experts, renormalised to sum to 1; zero elsewhere."""
    logits = linear(g, x, f"{name}.gate", config.hidden_size, num_experts)
    probabilities = g.op("Softmax", logits, axis=-1)
    chosen = g.ints(required(config.raw, "num_experts_per_tok"))
    best, ids = g.multi_op("TopK", probabilities, chosen, num_outputs=2, axis=-1)
    shares = g.op("Div", best, g.op("ReduceSum", best, g.ints(-1), keepdims=1))
    nothing = g.op("Mul", probabilities, g.constant(0, np.float32))
    return g.op("ScatterElements", nothing, ids, shares, axis=-1)


def _expert(g: GraphBuilder, config: DecoderConfig, x: ir.Value, name: str) -> ir.Value:
    """w2(act(w1 x) * w3 x), or this rank's part of that sum."""
    width, inner = config.hidden_size, config.inner
    both = merged_linear(g, x, (f"{name}.w1", f"{name}.w3"), width, (inner, inner), f"{name}.w13")
    return gated_output(g, both, f"{name}.w2", width, inner, activation(config.activation), reduces=False)


MIXTRAL = Family("mixtral", ("MixtralForCausalLM",), read_config, build)
