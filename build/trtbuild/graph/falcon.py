"""Falcon: attention and MLP side by side; one KV head (7B), grouped KV heads (40B, 180B) or ALiBi (RW)."""

from __future__ import annotations

import functools

import onnx_ir as ir

from trtbuild.graph.attention import Projected, alibi_slopes, paged_attention, split_qkv, ungroup_qkv
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig, RawConfig, make_config, required, rope_parameters
from trtbuild.graph.family import Family
from trtbuild.graph.head import embed_tokens, find_prefix, lm_head, select_rows
from trtbuild.graph.linear import linear
from trtbuild.graph.mlp import activation, plain_mlp
from trtbuild.graph.norm import layer_norm
from trtbuild.graph.rope import Rotary, rotary, rotate_heads
from trtbuild.graph.rope_frequencies import rope_from_config
from trtbuild.graph.step import Step


def read_config(family: str, raw: RawConfig) -> DecoderConfig:
    """`new_decoder_architecture` has grouped KV heads; else `multi_query` says one KV head or one a head."""
    hidden_size, num_heads = required(raw, "hidden_size"), required(raw, "num_attention_heads")
    if raw.get("new_decoder_architecture"):
        num_kv_heads = raw.get("num_kv_heads") or num_heads
    else:
        num_kv_heads = 1 if raw.get("multi_query", True) else num_heads
    head_dim, max_context_len = hidden_size // num_heads, raw.get("max_position_embeddings", 2048)
    theta, scaling = rope_parameters(raw)
    # Falcon adds ALiBi to the scores before it scales them.
    slopes = tuple(slope * head_dim**-0.5 for slope in alibi_slopes(num_heads)) if raw.get("alibi") else ()
    return make_config(
        family,
        raw,
        num_layers=required(raw, "num_hidden_layers"),
        hidden_size=hidden_size,
        inner_size=raw.get("ffn_hidden_size") or 4 * hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        max_context_len=max_context_len,
        norm_epsilon=float(raw.get("layer_norm_epsilon", 1e-5)),
        activation=raw.get("activation") or "gelu",
        alibi_slopes=slopes,
        rope=None if slopes else rope_from_config(theta, head_dim, scaling, max_context_len),
        tied_default=True,
    )


def build(g: GraphBuilder, step: Step, config: DecoderConfig) -> ir.Value:
    """Logits f32[S, vocab]."""
    root = find_prefix(g, "transformer.", "word_embeddings.weight")
    table, h = embed_tokens(g, step, config, f"{root}word_embeddings")
    angles = None if config.rope is None else rotary(g, config.rope, step.positions)
    for layer in range(config.num_layers):
        with g.scope(f"layers.{layer}"):
            h = _decoder_layer(g, step, config, layer, h, angles, f"{root}h.{layer}")
    with g.scope("head"):
        h = layer_norm(g, select_rows(g, step, h), f"{root}ln_f", config.hidden_size, config.norm_epsilon)
        return lm_head(g, h, config, table, "lm_head")


def _decoder_layer(
    g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, angles: Rotary | None, name: str
) -> ir.Value:
    """Parallel with one norm or with one for each block (`ln_attn`, `ln_mlp`); the RW models are sequential."""

    def norm(x: ir.Value, which: str) -> ir.Value:
        return layer_norm(g, x, f"{name}.{which}", config.hidden_size, config.norm_epsilon)

    two_norms = f"{name}.ln_attn.weight" in g.weights
    attn_in = norm(h, "ln_attn" if two_norms else "input_layernorm")
    with g.scope("attention"):
        attended = paged_attention(g, step, config, layer, _heads(g, attn_in, config, angles, name))
        attended = linear(g, attended, f"{name}.self_attention.dense", config.query_rows, config.hidden_size)
    if two_norms:
        mlp_in = norm(h, "ln_mlp")
    elif config.raw.get("parallel_attn", True) or config.raw.get("new_decoder_architecture"):
        mlp_in = attn_in
    else:
        h = g.op("Add", h, attended)
        return g.op("Add", h, _mlp(g, norm(h, "post_attention_layernorm"), config, name))
    return g.op("Add", h, g.op("Add", attended, _mlp(g, mlp_in, config, name)))


def _heads(g: GraphBuilder, x: ir.Value, config: DecoderConfig, angles: Rotary | None, name: str) -> Projected:
    ungroup = functools.partial(
        ungroup_qkv, num_groups=config.kv_heads.full, queries_per_group=config.heads.full // config.kv_heads.full
    )
    name = f"{name}.self_attention.query_key_value"
    merged = linear(g, x, name, config.hidden_size, config.qkv_rows, restore=ungroup)
    heads = split_qkv(g, merged, config)
    return heads if angles is None else rotate_heads(g, heads, config, angles)


def _mlp(g: GraphBuilder, x: ir.Value, config: DecoderConfig, name: str) -> ir.Value:
    with g.scope("mlp"):
        names = (f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h")
        return plain_mlp(g, x, names, config.hidden_size, config.inner, activation(config.activation))


FALCON = Family("falcon", ("FalconForCausalLM",), read_config, build)
