"""BLOOM: ALiBi instead of positions, a LayerNorm right after the embedding, Q/K/V interleaved by head."""

from __future__ import annotations

import functools

import onnx_ir as ir

from trtbuild.graph.attention import alibi_slopes, paged_attention, split_qkv, ungroup_qkv
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig, RawConfig, make_config, required
from trtbuild.graph.family import Family
from trtbuild.graph.head import embed_tokens, find_prefix, lm_head, select_rows
from trtbuild.graph.linear import linear
from trtbuild.graph.mlp import activation, plain_mlp
from trtbuild.graph.norm import layer_norm
from trtbuild.graph.step import Step

#: BLOOM's config has no limit; it was trained on this length (https://arxiv.org/abs/2211.05100, table 3).
TRAINED_LENGTH = 2048


def read_config(family: str, raw: RawConfig) -> DecoderConfig:
    """BLOOM's key names; `n_embed` is how its first checkpoints spell hidden_size."""
    hidden_size = raw.get("hidden_size") or required(raw, "n_embed")
    num_heads = raw.get("n_head") or required(raw, "num_attention_heads")
    return make_config(
        family,
        raw,
        num_layers=raw.get("n_layer") or required(raw, "num_hidden_layers"),
        hidden_size=hidden_size,
        inner_size=4 * hidden_size,
        num_heads=num_heads,
        max_context_len=raw.get("seq_length") or TRAINED_LENGTH,
        norm_epsilon=float(raw.get("layer_norm_epsilon", 1e-5)),
        activation="gelu_pytorch_tanh",
        alibi_slopes=alibi_slopes(num_heads),
        rope=None,
        tied_default=True,
    )


def build(g: GraphBuilder, step: Step, config: DecoderConfig) -> ir.Value:
    """Logits f32[S, vocab]."""
    root = find_prefix(g, "transformer.", "word_embeddings.weight")
    width, epsilon = config.hidden_size, config.norm_epsilon
    table, h = embed_tokens(g, step, config, f"{root}word_embeddings")
    with g.scope("embed"):
        h = layer_norm(g, h, f"{root}word_embeddings_layernorm", width, epsilon)
    for layer in range(config.num_layers):
        with g.scope(f"layers.{layer}"):
            h = _decoder_layer(g, step, config, layer, h, f"{root}h.{layer}")
    with g.scope("head"):
        h = layer_norm(g, select_rows(g, step, h), f"{root}ln_f", width, epsilon)
        return lm_head(g, h, config, table, "lm_head")


def _decoder_layer(g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, name: str) -> ir.Value:
    """Each block is added to its input, or, with `apply_residual_connection_post_layernorm`, to its normed input."""
    width, epsilon = config.hidden_size, config.norm_epsilon
    post_norm = config.raw.get("apply_residual_connection_post_layernorm", False)
    with g.scope("attention"):
        x = layer_norm(g, h, f"{name}.input_layernorm", width, epsilon)
        ungroup = functools.partial(ungroup_qkv, num_groups=config.heads.full, queries_per_group=1)
        merged = linear(g, x, f"{name}.self_attention.query_key_value", width, config.qkv_rows, restore=ungroup)
        attended = paged_attention(g, step, config, layer, split_qkv(g, merged, config))
        attended = linear(g, attended, f"{name}.self_attention.dense", config.query_rows, width)
        h = g.op("Add", x if post_norm else h, attended)
    with g.scope("mlp"):
        x = layer_norm(g, h, f"{name}.post_attention_layernorm", width, epsilon)
        names = (f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h")
        fed = plain_mlp(g, x, names, width, config.inner, activation(config.activation))
        return g.op("Add", x if post_norm else h, fed)


BLOOM = Family("bloom", ("BloomForCausalLM",), read_config, build)
