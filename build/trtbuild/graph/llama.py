"""Llama and its close relatives: RMSNorm before each block, rotary embedding, gated MLP.

Llama 2 and 3, SmolLM2, TinyLlama; Mistral (sliding window); Qwen2 (biases on Q, K and V); Qwen3 (a norm on every head
of Q and K). What differs is in the config and in which biases and norms the checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from trtbuild.graph.attention import Projected, norm_heads, paged_attention, qkv_projection
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig, RawConfig, llama_like_config
from trtbuild.graph.family import Family
from trtbuild.graph.head import embed_tokens, lm_head, select_rows
from trtbuild.graph.linear import linear
from trtbuild.graph.mlp import activation, gated_mlp
from trtbuild.graph.norm import rms_norm
from trtbuild.graph.rope import Rotary, rotary, rotate_heads
from trtbuild.graph.step import Step

#: (builder, step, config, layer number, hidden f32[T, hidden], angles) -> hidden
DecoderLayer = Callable[[GraphBuilder, Step, DecoderConfig, int, ir.Value, Rotary], ir.Value]
#: (builder, hidden f32[S, hidden], config) -> normalised
LastNorm = Callable[[GraphBuilder, ir.Value, DecoderConfig], ir.Value]


def read_config(family: str, raw: RawConfig) -> DecoderConfig:
    """Llama's own key names."""
    return llama_like_config(family, raw)


def build(g: GraphBuilder, step: Step, config: DecoderConfig) -> ir.Value:
    """Logits f32[S, vocab]."""
    return build_decoder(g, step, config, decoder_layer)


def last_rms_norm(g: GraphBuilder, h: ir.Value, config: DecoderConfig) -> ir.Value:
    return rms_norm(g, h, "model.norm", config.hidden_size, config.norm_epsilon)


def build_decoder(
    g: GraphBuilder, step: Step, config: DecoderConfig, layer_of: DecoderLayer, last_norm: LastNorm = last_rms_norm
) -> ir.Value:
    """The frame that relatives share: embedding, layers, last norm, head."""
    assert config.rope is not None
    table, h = embed_tokens(g, step, config, "model.embed_tokens")
    angles = rotary(g, config.rope, step.positions)
    for layer in range(config.num_layers):
        with g.scope(f"layers.{layer}"):
            h = layer_of(g, step, config, layer, h, angles)
    with g.scope("head"):
        h = last_norm(g, select_rows(g, step, h), config)
        return lm_head(g, h, config, table, "lm_head")


def decoder_layer(
    g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, angles: Rotary
) -> ir.Value:
    """h + attention(norm(h)), then h + mlp(norm(h))."""
    return mlp_block(g, config, layer, attention_block(g, step, config, layer, h, angles))


def attention_block(
    g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, angles: Rotary | None
) -> ir.Value:
    """h + attention(norm(h)); without `angles` Q and K are not rotated."""
    name, width = f"model.layers.{layer}", config.hidden_size
    with g.scope("attention"):
        x = rms_norm(g, h, f"{name}.input_layernorm", width, config.norm_epsilon)
        heads = norm_qk(g, qkv_projection(g, x, f"{name}.self_attn", config), f"{name}.self_attn", config)
        if angles is not None:
            heads = rotate_heads(g, heads, config, angles)
        x = paged_attention(g, step, config, layer, heads)
        return g.op("Add", h, linear(g, x, f"{name}.self_attn.o_proj", config.query_rows, width))


def mlp_block(g: GraphBuilder, config: DecoderConfig, layer: int, h: ir.Value) -> ir.Value:
    """h + mlp(norm(h))."""
    name, width = f"model.layers.{layer}", config.hidden_size
    with g.scope("mlp"):
        x = rms_norm(g, h, f"{name}.post_attention_layernorm", width, config.norm_epsilon)
        x = gated_mlp(g, x, f"{name}.mlp", width, config.inner, activation(config.activation))
        return g.op("Add", h, x)


def norm_qk(
    g: GraphBuilder, heads: Projected, name: str, config: DecoderConfig, *, weight_offset: float = 0.0
) -> Projected:
    """Q and K with `<name>.q_norm` and `<name>.k_norm` on every head, where the checkpoint has them."""
    if f"{name}.q_norm.weight" not in g.weights:
        return heads
    dim, epsilon = config.head_dim, config.norm_epsilon
    return Projected(
        norm_heads(g, heads.q, f"{name}.q_norm", config.num_heads, dim, epsilon, weight_offset),
        norm_heads(g, heads.k, f"{name}.k_norm", config.num_kv_heads, dim, epsilon, weight_offset),
        heads.v,
    )


LLAMA = Family("llama", ("LlamaForCausalLM",), read_config, build)
MISTRAL = Family("mistral", ("MistralForCausalLM",), read_config, build)
QWEN2 = Family("qwen2", ("Qwen2ForCausalLM",), read_config, build)
QWEN3 = Family("qwen3", ("Qwen3ForCausalLM",), read_config, build)
