"""Self-attention over the paged cache: the projections and the one stateful operator."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from trtdecode.executor.base import OPERATOR_DOMAIN

from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig
from trtbuild.graph.linear import merged_linear
from trtbuild.graph.matrix import Float32
from trtbuild.graph.norm import rms_norm
from trtbuild.graph.step import Step


@dataclass(frozen=True)
class Projected:
    """q f32[T, num_heads * head_dim]; k and v f32[T, num_kv_heads * head_dim]."""

    q: ir.Value
    k: ir.Value
    v: ir.Value


def qkv_projection(g: GraphBuilder, x: ir.Value, name: str, config: DecoderConfig) -> Projected:
    """`q_proj`, `k_proj` and `v_proj` under `name` as one matmul."""
    names = (f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
    widths = (config.query_rows, config.kv_rows, config.kv_rows)
    merged = merged_linear(g, x, names, config.hidden_size, widths, f"{name}.qkv_proj")
    return split_qkv(g, merged, config)


def split_qkv(g: GraphBuilder, merged: ir.Value, config: DecoderConfig) -> Projected:
    """q, k, v from side by side [T, (num_heads + 2 num_kv_heads) * head_dim]."""
    query_width, kv_width = config.query_rows.size, config.kv_rows.size
    return Projected(*g.multi_op("Split", merged, g.ints(query_width, kv_width, kv_width), num_outputs=3, axis=1))


def ungroup_qkv(rows: Float32, num_groups: int, queries_per_group: int) -> Float32:
    """Restores a fused projection stored group by group (queries, then K, then V) to all Q, all K, all V.

    Args:
        rows: [out, in] or a bias [out]; one group is (queries_per_group + 2) heads.
        num_groups: KV heads. GPT-NeoX and BLOOM have one query a group, Falcon several.
    """
    grouped = rows.reshape(num_groups, queries_per_group + 2, -1, *rows.shape[1:])
    parts = (grouped[:, :queries_per_group], grouped[:, queries_per_group], grouped[:, queries_per_group + 1])
    return np.concatenate([part.reshape(-1, *rows.shape[1:]) for part in parts])


def paged_attention(g: GraphBuilder, step: Step, config: DecoderConfig, layer: int, heads: Projected) -> ir.Value:
    """Writes this step's K and V into layer `layer`'s cache, then attends: f32[T, num_heads * head_dim].

    Query head h reads KV head h // (num_heads / num_kv_heads). A token at position p sees keys max(0, p - W + 1) to p
    with W = `sliding_window` (0: all keys up to p). With ALiBi, `alibi_slopes` holds one slope a query head.
    """
    optional = {"alibi_slopes": config.alibi_slopes} if config.alibi_slopes else {}
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
        **optional,
    )


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Slopes of https://arxiv.org/abs/2108.12409, section 3, as BLOOM computes them for any number of heads."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * (index + 1) / power) for index in range(power)]
    # Heads past the power of two take every second slope of twice as many heads.
    slopes += [2.0 ** (-4 * (2 * index + 1) / power) for index in range(num_heads - power)]
    return tuple(slopes)


def norm_heads(
    g: GraphBuilder, x: ir.Value, name: str, num_heads: int, head_dim: int, epsilon: float, offset: float = 0.0
) -> ir.Value:
    """RMSNorm of each head of x[T, num_heads * head_dim] with one weight [head_dim] (Qwen3, Gemma 3)."""
    heads = g.op("Reshape", x, g.ints(-1, num_heads, head_dim))
    normed = rms_norm(g, heads, name, head_dim, epsilon, weight_offset=offset)
    return g.op("Reshape", normed, g.ints(-1, num_heads * head_dim))
