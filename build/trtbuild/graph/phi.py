"""Phi-1, 1.5 and 2: one LayerNorm feeds attention and MLP side by side; part of each head rotates; many biases."""

from __future__ import annotations

import onnx_ir as ir
from trtdecode.errors import UnsupportedError

from trtbuild.graph.attention import paged_attention, qkv_projection
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig, RawConfig, make_config, required, rope_parameters, rotary_dim
from trtbuild.graph.family import Family
from trtbuild.graph.linear import linear
from trtbuild.graph.llama import build_decoder
from trtbuild.graph.mlp import activation, plain_mlp
from trtbuild.graph.norm import layer_norm
from trtbuild.graph.rope import Rotary, rotate_heads
from trtbuild.graph.rope_frequencies import rope_from_config
from trtbuild.graph.step import Step


def read_config(family: str, raw: RawConfig) -> DecoderConfig:
    """Raises UnsupportedError for `qk_layernorm`."""
    if raw.get("qk_layernorm"):
        raise UnsupportedError("config.json: qk_layernorm of Phi is not supported; use another model")
    hidden_size, num_heads = required(raw, "hidden_size"), required(raw, "num_attention_heads")
    max_context_len = required(raw, "max_position_embeddings")
    theta, scaling = rope_parameters(raw)
    turning = rotary_dim(raw, scaling, hidden_size // num_heads, default=0.5)
    return make_config(
        family,
        raw,
        num_layers=required(raw, "num_hidden_layers"),
        hidden_size=hidden_size,
        inner_size=required(raw, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads"),
        max_context_len=max_context_len,
        norm_epsilon=float(required(raw, "layer_norm_eps")),
        activation=raw.get("hidden_act") or "gelu_new",
        rope=rope_from_config(theta, turning, scaling, max_context_len),
        tied_default=False,
    )


def build(g: GraphBuilder, step: Step, config: DecoderConfig) -> ir.Value:
    """Logits f32[S, vocab]."""
    return build_decoder(g, step, config, _decoder_layer, _last_norm)


def _last_norm(g: GraphBuilder, h: ir.Value, config: DecoderConfig) -> ir.Value:
    return layer_norm(g, h, "model.final_layernorm", config.hidden_size, config.norm_epsilon)


def _decoder_layer(
    g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, angles: Rotary
) -> ir.Value:
    """h + attention(norm(h)) + mlp(norm(h)), with one norm."""
    name, width = f"model.layers.{layer}", config.hidden_size
    x = layer_norm(g, h, f"{name}.input_layernorm", width, config.norm_epsilon)
    with g.scope("attention"):
        heads = rotate_heads(g, qkv_projection(g, x, f"{name}.self_attn", config), config, angles)
        attended = paged_attention(g, step, config, layer, heads)
        attended = linear(g, attended, f"{name}.self_attn.dense", config.query_rows, width)
    with g.scope("mlp"):
        names = (f"{name}.mlp.fc1", f"{name}.mlp.fc2")
        fed = plain_mlp(g, x, names, width, config.inner, activation(config.activation))
    return g.op("Add", h, g.op("Add", attended, fed))


PHI = Family("phi", ("PhiForCausalLM",), read_config, build)
