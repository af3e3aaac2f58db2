"""Who has which KV block, as a picture wants it: one owner a cell, in runs of equal neighbours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from trtdecode.kv_cache.manager import KVCacheManager
from trtdecode.request import Request

FREE, CACHED = 0, -1
MAX_CELLS = 4096


def block_map(kv: KVCacheManager, running: Iterable[Request], max_cells: int = MAX_CELLS) -> dict[str, Any]:
    """The pool without its null block, in order of block id. Call it on the loop's thread.

    Returns:
        `blocks`: runs [owner, count] of cells; 0 free, -1 cached, else the request id of a sequence that has the block
        (of several that share it, the one that started first). `blocks_per_cell`: more than 1 in pools of more than
        `max_cells` blocks, where the first block stands for its cell. `num_sequences`: sequences that hold blocks.
        `sequences`: one [request id, the caller's id, trace id, tokens] each.
    """
    owners = np.zeros(kv.pool.num_blocks, np.int64)
    owners[kv.pool.cached_blocks()] = CACHED
    holders = sorted((r for r in running if r.blocks is not None), key=lambda r: (r.start_time or 0.0, r.request_id))
    for request in reversed(holders):
        assert request.blocks is not None
        owners[kv.block_tables[request.blocks.row, : request.blocks.num_blocks]] = request.request_id
    blocks_per_cell = -(-kv.pool.num_usable // max_cells)
    cells = owners[1::blocks_per_cell]
    starts = np.concatenate([[0], np.flatnonzero(np.diff(cells)) + 1])
    counts = np.diff([*starts, len(cells)])
    return {
        "blocks": np.stack([cells[starts], counts], axis=1).tolist(),
        "blocks_per_cell": blocks_per_cell,
        "num_sequences": len(holders),
        "sequences": [[r.request_id, r.caller_id, r.trace_id, r.num_tokens] for r in holders],
    }
