"""OPT: learned positions (their table starts with two unused rows), LayerNorm before or after, ReLU."""

from __future__ import annotations

import onnx_ir as ir
from trtdecode.errors import UnsupportedError

from trtbuild.graph.attention import paged_attention, qkv_projection
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig, RawConfig, make_config, required
from trtbuild.graph.family import Family
from trtbuild.graph.head import embed_tokens, find_prefix, lm_head, select_rows
from trtbuild.graph.linear import linear, position_table
from trtbuild.graph.mlp import activation, plain_mlp
from trtbuild.graph.norm import layer_norm
from trtbuild.graph.step import Step

UNUSED_POSITIONS = 2
EPSILON = 1e-5  # torch's default: OPT's config has no key for it


def read_config(family: str, raw: RawConfig) -> DecoderConfig:
    """Raises UnsupportedError for OPT-350m's narrower embedding and for norms without weights."""
    hidden_size = required(raw, "hidden_size")
    if raw.get("word_embed_proj_dim", hidden_size) != hidden_size:
        raise UnsupportedError("config.json: word_embed_proj_dim differs from hidden_size; use another OPT size")
    if not raw.get("layer_norm_elementwise_affine", True):
        raise UnsupportedError("config.json: layer_norm_elementwise_affine false is not supported; use another model")
    return make_config(
        family,
        raw,
        num_layers=required(raw, "num_hidden_layers"),
        hidden_size=hidden_size,
        inner_size=required(raw, "ffn_dim"),
        num_heads=required(raw, "num_attention_heads"),
        max_context_len=required(raw, "max_position_embeddings"),
        norm_epsilon=EPSILON,
        activation=raw.get("activation_function") or "relu",
        rope=None,
        tied_default=True,
    )


def build(g: GraphBuilder, step: Step, config: DecoderConfig) -> ir.Value:
    """Logits f32[S, vocab]."""
    root = find_prefix(g, "model.", "decoder.embed_tokens.weight") + "decoder"
    table, h = embed_tokens(g, step, config, f"{root}.embed_tokens")
    with g.scope("embed"):
        positions = position_table(
            g, f"{root}.embed_positions", config.max_context_len, config.hidden_size, skip=UNUSED_POSITIONS
        )
        h = g.op("Add", h, positions.gather(g, step.positions))
    for layer in range(config.num_layers):
        with g.scope(f"layers.{layer}"):
            h = _decoder_layer(g, step, config, layer, h, f"{root}.layers.{layer}")
    with g.scope("head"):
        h = select_rows(g, step, h)
        if f"{root}.final_layer_norm.weight" in g.weights:
            h = layer_norm(g, h, f"{root}.final_layer_norm", config.hidden_size, config.norm_epsilon)
        return lm_head(g, h, config, table, "lm_head")


def _decoder_layer(g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, name: str) -> ir.Value:
    """`do_layer_norm_before`: h + block(norm(h)); else norm(h + block(h))."""
    width, before = config.hidden_size, config.raw.get("do_layer_norm_before", True)

    def norm(x: ir.Value, which: str, here: bool) -> ir.Value:
        return layer_norm(g, x, f"{name}.{which}", width, config.norm_epsilon) if here else x

    with g.scope("attention"):
        heads = qkv_projection(g, norm(h, "self_attn_layer_norm", before), f"{name}.self_attn", config)
        x = paged_attention(g, step, config, layer, heads)
        x = linear(g, x, f"{name}.self_attn.out_proj", config.query_rows, width)
        h = norm(g.op("Add", h, x), "self_attn_layer_norm", not before)
    with g.scope("mlp"):
        x = norm(h, "final_layer_norm", before)
        x = plain_mlp(g, x, (f"{name}.fc1", f"{name}.fc2"), width, config.inner, activation(config.activation))
        return norm(g.op("Add", h, x), "final_layer_norm", not before)


OPT = Family("opt", ("OPTForCausalLM",), read_config, build)
