"""GPT-NeoX and Pythia: attention and MLP side by side on the same hidden state, part of each head rotates."""

from __future__ import annotations

import functools

import onnx_ir as ir

from trtbuild.graph.attention import paged_attention, split_qkv, ungroup_qkv
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig, RawConfig, make_config, required, rope_parameters, rotary_dim
from trtbuild.graph.family import Family
from trtbuild.graph.head import embed_tokens, find_prefix, lm_head, select_rows
from trtbuild.graph.linear import linear
from trtbuild.graph.mlp import activation, plain_mlp
from trtbuild.graph.norm import layer_norm
from trtbuild.graph.rope import Rotary, rotary, rotate_heads
from trtbuild.graph.rope_frequencies import rope_from_config
from trtbuild.graph.step import Step


def read_config(family: str, raw: RawConfig) -> DecoderConfig:
    """`rotary_pct` and `rotary_emb_base` are the older names of what transformers 5 keeps in `rope_parameters`."""
    hidden_size, num_heads = required(raw, "hidden_size"), required(raw, "num_attention_heads")
    head_dim, max_context_len = hidden_size // num_heads, required(raw, "max_position_embeddings")
    theta, scaling = rope_parameters(raw)
    theta = float(scaling.get("rope_theta") or raw.get("rotary_emb_base") or theta)
    turning = rotary_dim(raw, scaling, head_dim, default=raw.get("rotary_pct") or 0.25)
    return make_config(
        family,
        raw,
        num_layers=required(raw, "num_hidden_layers"),
        hidden_size=hidden_size,
        inner_size=required(raw, "intermediate_size"),
        num_heads=num_heads,
        max_context_len=max_context_len,
        norm_epsilon=float(required(raw, "layer_norm_eps")),
        activation=raw.get("hidden_act") or "gelu",
        rope=rope_from_config(theta, turning, scaling, max_context_len),
        tied_default=False,
    )


def build(g: GraphBuilder, step: Step, config: DecoderConfig) -> ir.Value:
    """Logits f32[S, vocab]."""
    assert config.rope is not None
    root = find_prefix(g, "gpt_neox.", "embed_in.weight")
    table, h = embed_tokens(g, step, config, f"{root}embed_in")
    angles = rotary(g, config.rope, step.positions)
    for layer in range(config.num_layers):
        with g.scope(f"layers.{layer}"):
            h = _decoder_layer(g, step, config, layer, h, angles, f"{root}layers.{layer}")
    with g.scope("head"):
        h = layer_norm(g, select_rows(g, step, h), f"{root}final_layer_norm", config.hidden_size, config.norm_epsilon)
        return lm_head(g, h, config, table, "embed_out")


def _decoder_layer(
    g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, angles: Rotary, name: str
) -> ir.Value:
    """Parallel: h + attention(norm1(h)) + mlp(norm2(h)); else one after the other."""
    width, epsilon = config.hidden_size, config.norm_epsilon
    with g.scope("attention"):
        x = layer_norm(g, h, f"{name}.input_layernorm", width, epsilon)
        ungroup = functools.partial(ungroup_qkv, num_groups=config.heads.full, queries_per_group=1)
        merged = linear(g, x, f"{name}.attention.query_key_value", width, config.qkv_rows, restore=ungroup)
        heads = rotate_heads(g, split_qkv(g, merged, config), config, angles)
        attended = paged_attention(g, step, config, layer, heads)
        attended = linear(g, attended, f"{name}.attention.dense", config.query_rows, width)
        after = g.op("Add", h, attended)
    with g.scope("mlp"):
        parallel = config.raw.get("use_parallel_residual", True)
        x = layer_norm(g, h if parallel else after, f"{name}.post_attention_layernorm", width, epsilon)
        names = (f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h")
        x = plain_mlp(g, x, names, width, config.inner, activation(config.activation))
        return g.op("Add", after, x)


GPT_NEOX = Family("gpt_neox", ("GPTNeoXForCausalLM",), read_config, build)
