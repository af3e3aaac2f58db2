"""Llama and its close relatives: RMSNorm before each block, rotary embedding, gated MLP.

Llama 2 and 3, SmolLM2, TinyLlama; Mistral (sliding window); Qwen2 (biases on Q, K and V). What differs is in the
config and in which biases the checkpoint holds.
"""

from __future__ import annotations

import onnx_ir as ir

from trtbuild.graph.attention import Projected, paged_attention, qkv_projection
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig, RawConfig, llama_like_config
from trtbuild.graph.family import Family
from trtbuild.graph.head import embed_tokens, lm_head, select_rows
from trtbuild.graph.linear import linear
from trtbuild.graph.mlp import activation, gated_mlp
from trtbuild.graph.norm import rms_norm
from trtbuild.graph.rope import Rotary, rotary
from trtbuild.graph.step import Step


def build(g: GraphBuilder, step: Step, config: DecoderConfig) -> ir.Value:
    """Logits f32[S, vocab]."""
    assert config.rope is not None
    table, h = embed_tokens(g, step, config, "model.embed_tokens")
    angles = rotary(g, config.rope, step.positions)
    for layer in range(config.num_layers):
        with g.scope(f"layers.{layer}"):
            h = decoder_layer(g, step, config, layer, h, angles)
    with g.scope("head"):
        h = select_rows(g, step, h)
        h = rms_norm(g, h, "model.norm", config.hidden_size, config.norm_epsilon)
        return lm_head(g, h, config, table, "lm_head")


def decoder_layer(
    g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, angles: Rotary
) -> ir.Value:
    """h + attention(norm(h)), then h + mlp(norm(h))."""
    name, width = f"model.layers.{layer}", config.hidden_size
    with g.scope("attention"):
        x = rms_norm(g, h, f"{name}.input_layernorm", width, config.norm_epsilon)
        heads = rotate_heads(g, qkv_projection(g, x, f"{name}.self_attn", config), config, angles)
        x = paged_attention(g, step, config, layer, heads)
        h = g.op("Add", h, linear(g, x, f"{name}.self_attn.o_proj", config.num_heads * config.head_dim, width))
    with g.scope("mlp"):
        x = rms_norm(g, h, f"{name}.post_attention_layernorm", width, config.norm_epsilon)
        x = gated_mlp(g, x, f"{name}.mlp", width, config.inner_size, activation(config.activation))
        return g.op("Add", h, x)


def rotate_heads(g: GraphBuilder, heads: Projected, config: DecoderConfig, angles: Rotary) -> Projected:
    """Q and K at their positions."""
    return Projected(
        angles.rotate(g, heads.q, config.num_heads, config.head_dim),
        angles.rotate(g, heads.k, config.num_kv_heads, config.head_dim),
        heads.v,
    )


def read_config(family: str, raw: RawConfig) -> DecoderConfig:
    """Llama's own key names."""
    return llama_like_config(family, raw)


LLAMA = Family("llama", ("LlamaForCausalLM",), read_config, build)
MISTRAL = Family("mistral", ("MistralForCausalLM",), read_config, build)
QWEN2 = Family("qwen2", ("Qwen2ForCausalLM",), read_config, build)
