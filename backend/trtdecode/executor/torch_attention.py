"""Paged attention in plain torch: the readable reference for every faster one, and it runs on any device.

Caches have the shape [num_blocks, num_kv_heads, block_size, head_dim]. Position p of a sequence lives in its block
table's entry p // block_size, at slot p % block_size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.base import Batch

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One sequence's share of a step, in host integers."""

    query_begin: int
    query_end: int
    past_len: int
    blocks: torch.Tensor  # i64 [blocks in use], on the device

    @property
    def context_len(self) -> int:
        return self.past_len + self.query_end - self.query_begin


@dataclass(frozen=True, slots=True)
class PagedStep:
    """A batch, prepared once for all layers of a step."""

    sequences: tuple[SequenceSpan, ...]
    token_blocks: torch.Tensor  # i64 [T] block of each new token
    token_slots: torch.Tensor  # i64 [T] slot inside it

    @classmethod
    def from_batch(cls, batch: Batch, block_size: int, device: torch.device) -> PagedStep:
        import torch

        positions = np.empty(batch.num_tokens, np.int64)
        token_blocks = np.empty(batch.num_tokens, np.int64)
        tables = torch.from_numpy(batch.block_indices.astype(np.int64)).to(device)
        sequences = []
        for index in range(batch.num_sequences):
            begin, end = int(batch.query_begins[index]), int(batch.query_begins[index + 1])
            table_begin, table_end = int(batch.block_begins[index]), int(batch.block_begins[index + 1])
            past_len = int(batch.past_lens[index])
            positions[begin:end] = np.arange(past_len, past_len + end - begin)
            token_blocks[begin:end] = batch.block_indices[table_begin:table_end][positions[begin:end] // block_size]
            sequences.append(SequenceSpan(begin, end, past_len, tables[table_begin:table_end]))
        return cls(
            sequences=tuple(sequences),
            token_blocks=torch.from_numpy(token_blocks).to(device),
            token_slots=torch.from_numpy(positions % block_size).to(device),
        )


def paged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    step: PagedStep,
    spec: AttentionSpec,
) -> torch.Tensor:
    """Writes the step's keys and values into their blocks, then attends causally over each sequence's context.

    Args:
        query: [T, num_heads * head_dim]; key, value: [T, num_kv_heads * head_dim].
        key_cache, value_cache: [num_blocks, num_kv_heads, block_size, head_dim], changed in place.

    Returns:
        [T, num_heads * head_dim], in the query's dtype.
    """
    import torch

    num_tokens = query.shape[0]
    new_shape = (num_tokens, spec.num_kv_heads, spec.head_dim)
    key_cache[step.token_blocks, :, step.token_slots] = key.reshape(new_shape).to(key_cache.dtype)
    value_cache[step.token_blocks, :, step.token_slots] = value.reshape(new_shape).to(value_cache.dtype)

    query = query.reshape(num_tokens, spec.num_heads, spec.head_dim)
    output = torch.empty_like(query)
    for sequence in step.sequences:
        rows = slice(sequence.query_begin, sequence.query_end)
        output[rows] = _attend(
            query[rows],
            _context(key_cache, sequence),
            _context(value_cache, sequence),
            sequence.past_len,
            spec,
        )
    return output.reshape(num_tokens, spec.num_heads * spec.head_dim)


def _context(cache: torch.Tensor, sequence: SequenceSpan) -> torch.Tensor:
    """[num_kv_heads, context_len, head_dim], gathered through the block table."""
    pages = cache[sequence.blocks].transpose(0, 1)  # [Hkv, blocks, block_size, D]
    return pages.reshape(pages.shape[0], -1, pages.shape[3])[:, : sequence.context_len]


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, past_len: int, spec: AttentionSpec
) -> torch.Tensor:
    """Query [Q, H, D] over keys and values [Hkv, C, D]; head h reads KV head h // (H / Hkv). Softmax in float32."""
    import torch

    num_queries = query.shape[0]
    group = spec.num_heads // spec.num_kv_heads
    grouped = query.reshape(num_queries, spec.num_kv_heads, group, spec.head_dim).permute(1, 2, 0, 3)  # [Hkv,G,Q,D]
    scores = torch.einsum("kgqd,kcd->kgqc", grouped, keys.to(query.dtype)).float() * spec.scale
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    query_positions = torch.arange(past_len, past_len + num_queries, device=query.device)[:, None]
    distance = query_positions - torch.arange(keys.shape[1], device=query.device)[None, :]  # [Q, C]
    if len(spec.alibi_slopes):
        slopes = torch.tensor(spec.alibi_slopes, device=query.device).reshape(spec.num_kv_heads, group, 1, 1)
        scores = scores - slopes * distance
    hidden = distance < 0
    if spec.sliding_window:
        hidden |= distance >= spec.sliding_window
    weights = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1).to(query.dtype)
    attended = torch.einsum("kgqc,kcd->qkgd", weights, values.to(query.dtype))
    return attended.reshape(num_queries, spec.num_heads, spec.head_dim)
