"""Phi-3 and Phi-4: Llama with Q/K/V and gate/up already fused in the checkpoint, often with LongRoPE."""

from __future__ import annotations

import onnx_ir as ir

from trtbuild.graph.attention import paged_attention, split_qkv
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig
from trtbuild.graph.family import Family
from trtbuild.graph.linear import linear
from trtbuild.graph.llama import build_decoder, read_config
from trtbuild.graph.mlp import activation, gated_output
from trtbuild.graph.norm import rms_norm
from trtbuild.graph.rope import Rotary, rotate_heads
from trtbuild.graph.share import Share
from trtbuild.graph.step import Step


def build(g: GraphBuilder, step: Step, config: DecoderConfig) -> ir.Value:
    """Logits f32[S, vocab]."""
    return build_decoder(g, step, config, _decoder_layer)


def _decoder_layer(
    g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, angles: Rotary
) -> ir.Value:
    name, width, inner = f"model.layers.{layer}", config.hidden_size, config.inner
    with g.scope("attention"):
        x = rms_norm(g, h, f"{name}.input_layernorm", width, config.norm_epsilon)
        merged = linear(g, x, f"{name}.self_attn.qkv_proj", width, config.qkv_rows)
        heads = rotate_heads(g, split_qkv(g, merged, config), config, angles)
        x = paged_attention(g, step, config, layer, heads)
        h = g.op("Add", h, linear(g, x, f"{name}.self_attn.o_proj", config.query_rows, width))
    with g.scope("mlp"):
        x = rms_norm(g, h, f"{name}.post_attention_layernorm", width, config.norm_epsilon)
        both = linear(g, x, f"{name}.mlp.gate_up_proj", width, Share.joined(inner, inner))
        x = gated_output(g, both, f"{name}.mlp.down_proj", width, inner, activation(config.activation))
        return g.op("Add", h, x)


PHI3 = Family("phi3", ("Phi3ForCausalLM",), read_config, build)
