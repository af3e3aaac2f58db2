"""BERT and RoBERTa encoders: LayerNorm after each block, learned positions; MiniLM, E5, BGE, XLM-R, cross-encoders."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from trtdecode.errors import UnsupportedError

from trtbuild.graph.attention import Projected
from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import RawConfig, required
from trtbuild.graph.encoder_config import EncoderConfig, bert_like_config
from trtbuild.graph.encoder_step import EncoderStep, full_mask, padded_attention
from trtbuild.graph.family import EncoderFamily
from trtbuild.graph.head import find_prefix
from trtbuild.graph.linear import embedding, linear, merged_linear, position_table
from trtbuild.graph.mlp import activation, plain_mlp
from trtbuild.graph.norm import layer_norm
from trtbuild.graph.pooling import first_token, pool


def read_bert(family: str, raw: RawConfig) -> EncoderConfig:
    """BERT's key names."""
    return _read(family, raw)


def read_roberta(family: str, raw: RawConfig) -> EncoderConfig:
    """RoBERTa counts positions from pad_token_id + 1, and its table holds the rows in front."""
    return _read(family, raw, num_positions=required(raw, "max_position_embeddings") - _unused_positions(raw))


def _read(family: str, raw: RawConfig, **changes: Any) -> EncoderConfig:
    kind = raw.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise UnsupportedError(f"config.json: position_embedding_type {kind!r} is not supported; absolute is")
    return bert_like_config(family, raw, **changes)


def _unused_positions(raw: RawConfig) -> int:
    return int(required(raw, "pad_token_id")) + 1


def build_bert(g: GraphBuilder, step: EncoderStep, config: EncoderConfig) -> ir.Value:
    """Embedding f32[B, hidden] or scores f32[B, labels]."""
    root = find_prefix(g, "bert.", "embeddings.word_embeddings.weight")
    h = _encode(g, step, config, root, skip_positions=0)
    if not config.num_labels:
        return pool(g, step, config, h)
    with g.scope("head"):
        first = linear(g, first_token(g, step, h), f"{root}pooler.dense", config.hidden_size, config.hidden_size)
        return linear(g, g.op("Tanh", first), "classifier", config.hidden_size, config.num_labels)


def build_roberta(g: GraphBuilder, step: EncoderStep, config: EncoderConfig) -> ir.Value:
    """Embedding f32[B, hidden] or scores f32[B, labels]."""
    root = find_prefix(g, "roberta.", "embeddings.word_embeddings.weight")
    h = _encode(g, step, config, root, skip_positions=_unused_positions(config.raw))
    if not config.num_labels:
        return pool(g, step, config, h)
    with g.scope("head"):
        first = linear(g, first_token(g, step, h), "classifier.dense", config.hidden_size, config.hidden_size)
        return linear(g, g.op("Tanh", first), "classifier.out_proj", config.hidden_size, config.num_labels)


def _encode(g: GraphBuilder, step: EncoderStep, config: EncoderConfig, root: str, skip_positions: int) -> ir.Value:
    """Token states f32[T, hidden]."""
    h = _embed(g, step, config, f"{root}embeddings", skip_positions)
    mask = full_mask(g, step)
    for layer in range(config.num_layers):
        with g.scope(f"layers.{layer}"):
            h = _encoder_layer(g, step, config, h, mask, f"{root}encoder.layer.{layer}")
    return h


def _embed(g: GraphBuilder, step: EncoderStep, config: EncoderConfig, name: str, skip_positions: int) -> ir.Value:
    width = config.hidden_size
    with g.scope("embed"):
        words = embedding(g, f"{name}.word_embeddings", config.vocab_size, width).gather(g, step.input_ids)
        positions = position_table(
            g, f"{name}.position_embeddings", config.num_positions, width, skip=skip_positions
        ).gather(g, step.positions)
        num_types = config.raw.get("type_vocab_size", 2)
        types = position_table(g, f"{name}.token_type_embeddings", num_types, width).gather(g, step.token_types)
        total = g.op("Add", g.op("Add", words, types), positions)
        return layer_norm(g, total, f"{name}.LayerNorm", width, config.norm_epsilon)


def _encoder_layer(
    g: GraphBuilder, step: EncoderStep, config: EncoderConfig, h: ir.Value, mask: ir.Value, name: str
) -> ir.Value:
    """norm(h + attention(h)), then norm(h + mlp(h))."""
    width = config.hidden_size
    with g.scope("attention"):
        names = tuple(f"{name}.attention.self.{part}" for part in ("query", "key", "value"))
        merged = merged_linear(g, h, names, width, (width, width, width), f"{name}.attention.self.qkv")
        heads = Projected(*g.multi_op("Split", merged, g.ints(width, width, width), num_outputs=3, axis=1))
        x = padded_attention(g, step, config, heads, mask)
        x = g.op("Add", h, linear(g, x, f"{name}.attention.output.dense", width, width))
        h = layer_norm(g, x, f"{name}.attention.output.LayerNorm", width, config.norm_epsilon)
    with g.scope("mlp"):
        parts = (f"{name}.intermediate.dense", f"{name}.output.dense")
        x = g.op("Add", h, plain_mlp(g, h, parts, width, config.inner_size, activation(config.activation)))
        return layer_norm(g, x, f"{name}.output.LayerNorm", width, config.norm_epsilon)


BERT = EncoderFamily("bert", ("BertModel", "BertForSequenceClassification"), read_bert, build_bert)
ROBERTA = EncoderFamily(
    "roberta",
    ("RobertaModel", "XLMRobertaModel", "RobertaForSequenceClassification", "XLMRobertaForSequenceClassification"),
    read_roberta,
    build_roberta,
)
