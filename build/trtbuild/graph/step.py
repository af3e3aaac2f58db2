"""The graph's inputs: one step's ragged batch and the KV caches (DESIGN: the graph contract)."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from trtdecode.executor.base import GRAPH_INPUTS

from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig

I32, I64, F32 = ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT

_TYPES: dict[str, tuple[ir.DataType, list[int | str]]] = {
    "input_ids": (I64, ["T"]),
    "positions": (I64, ["T"]),
    "past_lens": (I32, ["B"]),
    "query_begins": (I32, ["B_plus_1"]),
    "block_indices": (I32, ["num_block_refs"]),
    "block_begins": (I32, ["B_plus_1"]),
    "max_context_len": (I32, []),
    "logit_indices": (I64, ["S"]),
}


@dataclass(frozen=True)
class Step:
    """Graph inputs; fields are named as in the contract. Caches are one a layer, their layout is the executor's."""

    input_ids: ir.Value
    positions: ir.Value
    past_lens: ir.Value
    query_begins: ir.Value
    block_indices: ir.Value
    block_begins: ir.Value
    max_context_len: ir.Value
    logit_indices: ir.Value
    key_caches: tuple[ir.Value, ...]
    value_caches: tuple[ir.Value, ...]


def declare_step(g: GraphBuilder, config: DecoderConfig) -> Step:
    """Declares all inputs in the contract's order, then `key_cache.L` and `value_cache.L` layer by layer."""
    inputs = {name: g.input(name, *_TYPES[name]) for name in GRAPH_INPUTS}
    keys, values = [], []
    for layer in range(config.num_layers):
        shape: list[int | str] = ["num_blocks", config.num_kv_heads, "block_size", config.head_dim]
        keys.append(g.input(f"key_cache.{layer}", F32, shape))
        values.append(g.input(f"value_cache.{layer}", F32, shape))
    return Step(**inputs, key_caches=tuple(keys), value_caches=tuple(values))
