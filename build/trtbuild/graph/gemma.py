"""Gemma 1, 2 and 3: scaled embedding, norms that store w - 1, tanh-GELU gates.

Gemma 2 adds a norm after each block, capped scores and logits, and a sliding window in every other layer. Gemma 3
drops the caps, normalises Q and K, and gives sliding layers frequencies of their own.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from trtbuild.graph.attention import paged_attention, qkv_projection
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import (
    DecoderConfig,
    RawConfig,
    llama_like_config,
    required,
    rope_parameters,
    sliding_windows,
)
from trtbuild.graph.family import Family
from trtbuild.graph.head import embed_tokens, lm_head, select_rows, softcap
from trtbuild.graph.linear import linear
from trtbuild.graph.llama import norm_qk
from trtbuild.graph.mlp import activation, gated_mlp
from trtbuild.graph.norm import rms_norm
from trtbuild.graph.rope import Rotary, rotary, rotate_heads
from trtbuild.graph.rope_frequencies import RopeConfig, rope_from_config
from trtbuild.graph.step import Step

NORM_OFFSET = 1.0


def read_config(family: str, raw: RawConfig) -> DecoderConfig:
    """Gemma's key names over Llama's."""
    num_layers = required(raw, "num_hidden_layers")
    changes: dict[str, Any] = {
        "activation": raw.get("hidden_activation") or raw.get("hidden_act") or "gelu_pytorch_tanh",
        "softcap": raw.get("attn_logit_softcapping") or 0.0,
        "sliding_windows": sliding_windows({**raw, **_layer_types(family, raw, num_layers)}, num_layers),
        "rope": _rope(raw, "full_attention"),
    }
    if family == "gemma":
        changes["sliding_windows"] = None
    if raw.get("query_pre_attn_scalar"):
        changes["attention_scale"] = raw["query_pre_attn_scalar"] ** -0.5
    return llama_like_config(family, raw, tied_default=True, **changes)


def _layer_types(family: str, raw: RawConfig, num_layers: int) -> dict[str, Any]:
    """Older configs give the period instead of a list: every second layer (Gemma 2) or sixth (3) sees everything."""
    if raw.get("layer_types") or family == "gemma":
        return {}
    period = 2 if family == "gemma2" else raw.get("sliding_window_pattern") or 6
    kinds = ["full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(num_layers)]
    return {"layer_types": kinds}


def _rope(raw: RawConfig, kind: str) -> RopeConfig:
    """Frequencies of layers of one kind: one set a kind in Gemma 3, the same for all before."""
    head_dim, max_context_len = required(raw, "head_dim"), required(raw, "max_position_embeddings")
    by_kind = raw.get("rope_parameters") or {}
    if kind in by_kind:
        parameters = by_kind[kind]
        return rope_from_config(float(parameters["rope_theta"]), head_dim, parameters, max_context_len)
    if kind == "sliding_attention" and raw.get("rope_local_base_freq"):
        return rope_from_config(float(raw["rope_local_base_freq"]), head_dim, {}, max_context_len)
    theta, scaling = rope_parameters(raw)
    return rope_from_config(theta, head_dim, scaling, max_context_len)


def build(g: GraphBuilder, step: Step, config: DecoderConfig) -> ir.Value:
    """Logits f32[S, vocab]."""
    table, h = embed_tokens(g, step, config, "model.embed_tokens")
    h = g.op("Mul", h, g.scalar(math.sqrt(config.hidden_size)))
    angles = _angles(g, step, config)
    for layer in range(config.num_layers):
        with g.scope(f"layers.{layer}"):
            h = _decoder_layer(g, step, config, layer, h, angles[config.sliding_windows[layer] > 0])
    with g.scope("head"):
        h = _norm(g, select_rows(g, step, h), "model.norm", config)
        logits = lm_head(g, h, config, table, "lm_head")
        return softcap(g, logits, config.raw.get("final_logit_softcapping") or 0.0)


def _angles(g: GraphBuilder, step: Step, config: DecoderConfig) -> tuple[Rotary, Rotary]:
    """(full, sliding); one computation where their frequencies are equal."""
    assert config.rope is not None
    full = rotary(g, config.rope, step.positions)
    local = _rope(config.raw, "sliding_attention")
    if local == config.rope or not any(config.sliding_windows):
        return full, full
    return full, rotary(g, local, step.positions)


def _decoder_layer(
    g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, angles: Rotary
) -> ir.Value:
    name, width = f"model.layers.{layer}", config.hidden_size
    post_norms = f"{name}.pre_feedforward_layernorm.weight" in g.weights
    with g.scope("attention"):
        x = _norm(g, h, f"{name}.input_layernorm", config)
        heads = qkv_projection(g, x, f"{name}.self_attn", config)
        heads = norm_qk(g, heads, f"{name}.self_attn", config, weight_offset=NORM_OFFSET)
        x = paged_attention(g, step, config, layer, rotate_heads(g, heads, config, angles))
        x = linear(g, x, f"{name}.self_attn.o_proj", config.query_rows, width)
        if post_norms:
            x = _norm(g, x, f"{name}.post_attention_layernorm", config)
        h = g.op("Add", h, x)
    with g.scope("mlp"):
        before = "pre_feedforward_layernorm" if post_norms else "post_attention_layernorm"
        x = _norm(g, h, f"{name}.{before}", config)
        x = gated_mlp(g, x, f"{name}.mlp", width, config.inner, activation(config.activation))
        if post_norms:
            x = _norm(g, x, f"{name}.post_feedforward_layernorm", config)
        return g.op("Add", h, x)


def _norm(g: GraphBuilder, x: ir.Value, name: str, config: DecoderConfig) -> ir.Value:
    return rms_norm(g, x, name, config.hidden_size, config.norm_epsilon, weight_offset=NORM_OFFSET)


GEMMA = Family("gemma", ("GemmaForCausalLM",), read_config, build)
GEMMA2 = Family("gemma2", ("Gemma2ForCausalLM",), read_config, build)
GEMMA3 = Family("gemma3", ("Gemma3ForCausalLM",), read_config, build)
