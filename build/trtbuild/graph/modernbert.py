"""ModernBERT: rotary embedding, LayerNorm before each block, gated GELU, and local attention in two of three layers."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from trtdecode.errors import UnsupportedError

from trtbuild.graph.attention import Projected
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import RawConfig, required
from trtbuild.graph.encoder_config import EncoderConfig, bert_like_config
from trtbuild.graph.encoder_step import EncoderStep, full_mask, local_mask, padded_attention
from trtbuild.graph.family import EncoderFamily
from trtbuild.graph.head import find_prefix
from trtbuild.graph.linear import embedding, linear
from trtbuild.graph.mlp import activation, gated_output
from trtbuild.graph.norm import layer_norm
from trtbuild.graph.pooling import pool
from trtbuild.graph.rope import Rotary, rotary
from trtbuild.graph.rope_frequencies import rope_from_config

#: Where the config has no `layer_types`: every third layer, beginning with the first, sees the whole text.
GLOBAL_PERIOD = 3
GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0


def read_config(family: str, raw: RawConfig) -> EncoderConfig:
    """ModernBERT's key names over BERT's; classifiers pool as `classifier_pooling` says."""
    changes: dict[str, Any] = {
        "norm_epsilon": float(raw.get("norm_eps", 1e-5)),
        "activation": raw.get("hidden_activation") or "gelu",
    }
    config = bert_like_config(family, raw, **changes)
    if not config.num_labels:
        return config
    if (raw.get("classifier_activation") or "gelu") != "gelu":
        raise UnsupportedError("config.json: classifier_activation other than gelu is not supported")
    return bert_like_config(family, raw, **changes, pooling=raw.get("classifier_pooling") or "cls", normalize=False)


def layer_kinds(raw: RawConfig, num_layers: int) -> list[str]:
    """For each layer, "full_attention" or "sliding_attention"."""
    period = raw.get("global_attn_every_n_layers") or GLOBAL_PERIOD
    kinds = ["sliding_attention" if layer % period else "full_attention" for layer in range(num_layers)]
    return list(raw.get("layer_types") or kinds)


def build(g: GraphBuilder, step: EncoderStep, config: EncoderConfig) -> ir.Value:
    """Embedding f32[B, hidden] or scores f32[B, labels]."""
    root = find_prefix(g, "model.", "embeddings.tok_embeddings.weight")
    width, epsilon = config.hidden_size, config.norm_epsilon
    with g.scope("embed"):
        words = embedding(g, f"{root}embeddings.tok_embeddings", config.vocab_size, width)
        h = layer_norm(g, words.gather(g, step.input_ids), f"{root}embeddings.norm", width, epsilon)
    sights = _sights(g, step, config)
    for layer, kind in enumerate(layer_kinds(config.raw, config.num_layers)):
        with g.scope(f"layers.{layer}"):
            h = _encoder_layer(g, step, config, h, sights[kind], f"{root}layers.{layer}")
    with g.scope("head"):
        h = layer_norm(g, h, f"{root}final_norm", width, epsilon)
        pooled = pool(g, step, config, h)
        if not config.num_labels:
            return pooled
        x = activation("gelu")(g, linear(g, pooled, "head.dense", width, width))
        return linear(g, layer_norm(g, x, "head.norm", width, epsilon), "classifier", width, config.num_labels)


Sight = tuple[Rotary, ir.Value]  # the angles and the mask of layers of one kind


def _sights(g: GraphBuilder, step: EncoderStep, config: EncoderConfig) -> dict[str, Sight]:
    reach = required(config.raw, "local_attention") // 2
    return {
        "full_attention": (_angles(g, step, config, "full_attention"), full_mask(g, step)),
        "sliding_attention": (_angles(g, step, config, "sliding_attention"), local_mask(g, step, reach)),
    }


def _angles(g: GraphBuilder, step: EncoderStep, config: EncoderConfig, kind: str) -> Rotary:
    raw = config.raw
    key, default = (
        ("global_rope_theta", GLOBAL_THETA) if kind == "full_attention" else ("local_rope_theta", LOCAL_THETA)
    )
    parameters = (raw.get("rope_parameters") or {}).get(kind) or {}
    theta = float(parameters.get("rope_theta") or raw.get(key) or default)
    return rotary(g, rope_from_config(theta, config.head_dim, parameters, config.num_positions), step.positions)


def _encoder_layer(
    g: GraphBuilder, step: EncoderStep, config: EncoderConfig, h: ir.Value, sight: Sight, name: str
) -> ir.Value:
    """h + attention(norm(h)), then h + mlp(norm(h)); the first layer's attention has no norm."""
    width, inner, (angles, mask) = config.hidden_size, config.inner_size, sight
    with g.scope("attention"):
        normed = f"{name}.attn_norm.weight" in g.weights
        x = layer_norm(g, h, f"{name}.attn_norm", width, config.norm_epsilon) if normed else h
        merged = linear(g, x, f"{name}.attn.Wqkv", width, 3 * width)
        q, k, v = g.multi_op("Split", merged, g.ints(width, width, width), num_outputs=3, axis=1)
        q, k = (angles.rotate(g, part, config.num_heads, config.head_dim) for part in (q, k))
        x = padded_attention(g, step, config, Projected(q, k, v), mask)
        h = g.op("Add", h, linear(g, x, f"{name}.attn.Wo", width, width))
    with g.scope("mlp"):
        x = layer_norm(g, h, f"{name}.mlp_norm", width, config.norm_epsilon)
        both = linear(g, x, f"{name}.mlp.Wi", width, 2 * inner)
        x = gated_output(g, both, f"{name}.mlp.Wo", width, inner, activation(config.activation))
        return g.op("Add", h, x)


MODERNBERT = EncoderFamily("modernbert", ("ModernBertModel", "ModernBertForSequenceClassification"), read_config, build)
