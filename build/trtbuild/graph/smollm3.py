"""SmolLM3: Llama in which every fourth layer does not rotate Q and K (NoPE, https://arxiv.org/abs/2501.18795)."""

from __future__ import annotations

import onnx_ir as ir

from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig, RawConfig, llama_like_config
from trtbuild.graph.family import Family
from trtbuild.graph.llama import attention_block, build_decoder, mlp_block
from trtbuild.graph.rope import Rotary
from trtbuild.graph.step import Step


def read_config(family: str, raw: RawConfig) -> DecoderConfig:
    """Llama's key names; the embedding is tied unless the config says otherwise."""
    return llama_like_config(family, raw, tied_default=True)


def build(g: GraphBuilder, step: Step, config: DecoderConfig) -> ir.Value:
    """Logits f32[S, vocab]."""
    return build_decoder(g, step, config, _decoder_layer)


def _decoder_layer(
    g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, h: ir.Value, angles: Rotary
) -> ir.Value:
    turning = angles if rotates(config.raw, layer) else None
    return mlp_block(g, config, layer, attention_block(g, step, config, layer, h, turning))


def rotates(raw: RawConfig, layer: int) -> bool:
    """`no_rope_layers` holds 1 where a layer rotates (its name says the opposite); else the period decides."""
    flags = raw.get("no_rope_layers")
    if flags:
        return bool(flags[layer])
    return (layer + 1) % (raw.get("no_rope_layer_interval") or 4) != 0


SMOLLM3 = Family("smollm3", ("SmolLM3ForCausalLM",), read_config, build)
