"""Self-attention over the paged cache: the projections and the one stateful operator."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from trtdecode.executor.base import OPERATOR_DOMAIN

from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig
from trtbuild.graph.linear import merged_linear
from trtbuild.graph.step import Step


@dataclass(frozen=True)
class Projected:
    """q f32[T, num_heads * head_dim]; k and v f32[T, num_kv_heads * head_dim]."""

    q: ir.Value
    k: ir.Value
    v: ir.Value


def qkv_projection(g: GraphBuilder, x: ir.Value, name: str, config: DecoderConfig) -> Projected:
    """`q_proj`, `k_proj` and `v_proj` under `name` as one matmul."""
    query_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    names = (f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
    merged = merged_linear(g, x, names, config.hidden_size, (query_width, kv_width, kv_width), f"{name}.qkv_proj")
    return split_qkv(g, merged, config)


def split_qkv(g: GraphBuilder, merged: ir.Value, config: DecoderConfig) -> Projected:
    """q, k, v from side by side [T, (num_heads + 2 num_kv_heads) * head_dim]."""
    query_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return Projected(*g.multi_op("Split", merged, g.ints(query_width, kv_width, kv_width), num_outputs=3, axis=1))


def paged_attention(g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, heads: Projected) -> ir.Value:
    """Writes this step's K and V into layer `layer`'s cache, then attends: f32[T, num_heads * head_dim].

    Query head h reads KV head h // (num_heads / num_kv_heads). A token at position p sees keys max(0, p - W + 1) to p
    with W = `sliding_window` (0: all keys up to p).
    """
    return g.op(
        "PagedAttention",
        heads.q,
        heads.k,
        heads.v,
        step.key_caches[layer],
        step.value_caches[layer],
        step.past_lens,
        step.query_begins,
        step.block_indices,
        step.block_begins,
        step.max_context_len,
        domain=OPERATOR_DOMAIN,
        scale=float(config.attention_scale),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        sliding_window=config.sliding_windows[layer],
        softcap=float(config.softcap),
    )
