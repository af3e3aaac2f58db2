"""GPT-2: learned positions, LayerNorm before each block, Conv1D weights (stored [in, out])."""

from __future__ import annotations

import onnx_ir as ir
from trtdecode.errors import UnsupportedError

from trtbuild.graph.attention import paged_attention, split_qkv
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig, RawConfig, make_config, required
from trtbuild.graph.family import Family
from trtbuild.graph.head import embed_tokens, find_prefix, lm_head, select_rows
from trtbuild.graph.linear import linear, position_table, transpose
from trtbuild.graph.mlp import activation
from trtbuild.graph.norm import layer_norm
from trtbuild.graph.step import Step


def read_config(family: str, raw: RawConfig) -> DecoderConfig:
    """GPT-2's own key names. Raises UnsupportedError for attention scaled by layer."""
    if raw.get("scale_attn_by_inverse_layer_idx"):
        raise UnsupportedError("config.json: scale_attn_by_inverse_layer_idx is not supported; use another model")
    hidden_size = required(raw, "n_embd")
    return make_config(
        family,
        raw,
        num_layers=required(raw, "n_layer"),
        hidden_size=hidden_size,
        inner_size=raw.get("n_inner") or 4 * hidden_size,
        num_heads=required(raw, "n_head"),
        max_context_len=required(raw, "n_positions"),
        norm_epsilon=float(raw.get("layer_norm_epsilon", 1e-5)),
        activation=raw.get("activation_function") or "gelu_new",
        attention_scale=None if raw.get("scale_attn_weights", True) else 1.0,
        rope=None,
        tied_default=True,
    )


def build(g: GraphBuilder, step: Step, config: DecoderConfig) -> ir.Value:
    """Logits f32[S, vocab]."""
    root = find_prefix(g, "transformer.", "wte.weight")
    table, h = embed_tokens(g, step, config, f"{root}wte")
    with g.scope("embed"):
        positions = position_table(g, f"{root}wpe", config.max_context_len, config.hidden_size)
        h = g.op("Add", h, positions.gather(g, step.positions))
    for layer in range(config.num_layers):
        with g.scope(f"layers.{layer}"):
            h = _decoder_layer(g, step, config, layer, h, f"{root}h.{layer}")
    with g.scope("head"):
        h = layer_norm(g, select_rows(g, step, h), f"{root}ln_f", config.hidden_size, config.norm_epsilon)
        return lm_head(g, h, config, table, "lm_head")


def _decoder_layer(g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, name: str) -> ir.Value:
    width, inner = config.hidden_size, config.inner
    with g.scope("attention"):
        x = layer_norm(g, h, f"{name}.ln_1", width, config.norm_epsilon)
        merged = linear(g, x, f"{name}.attn.c_attn", width, config.qkv_rows, restore=transpose)
        x = paged_attention(g, step, config, layer, split_qkv(g, merged, config))
        h = g.op("Add", h, linear(g, x, f"{name}.attn.c_proj", config.query_rows, width, restore=transpose))
    with g.scope("mlp"):
        x = layer_norm(g, h, f"{name}.ln_2", width, config.norm_epsilon)
        x = activation(config.activation)(g, linear(g, x, f"{name}.mlp.c_fc", width, inner, restore=transpose))
        return g.op("Add", h, linear(g, x, f"{name}.mlp.c_proj", inner, width, restore=transpose))


GPT2 = Family("gpt2", ("GPT2LMHeadModel",), read_config, build)
