"""An executor without a model, whose answers still depend on every K/V slot that a real one would read.

Its "K/V" of a token is the token id itself, kept per (block, slot). A row's "logits" are a hash of the tokens it finds
when it attends through the block table that it is given. So a wrong table, prefix hit, fork, copy or preemption
changes the hash, and with it the next token.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
from trtdecode.executor.base import Batch, BatchResult, CacheLost

EMPTY, GARBAGE = -1, -2


def history_hash(token_ids: npt.NDArray[np.int32]) -> int:
    """What the fake model knows of the tokens it attends to."""
    return zlib.crc32(token_ids.tobytes())


class FakeExecutor:
    """Implements `executor.base.Executor`; `argmax` carries the hashes.

    Args:
        window: tokens that each query sees, itself included; 0 for all.
        num_host_blocks: of the host pool.
    """

    name = "fake"

    def __init__(self, num_blocks: int, block_size: int, window: int = 0, num_host_blocks: int = 0) -> None:
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.block_size = block_size
        self.window = window
        self.num_steps = 0
        self.num_tokens = 0
        self.fail_next = False
        self.lose_next = False  # everything
        self._slots = np.full((num_blocks, block_size), EMPTY, np.int32)
        self._host = np.full((num_host_blocks, block_size), EMPTY, np.int32)

    def execute(self, batch: Batch) -> BatchResult:
        """Copies blocks, writes, attends. A failing step leaves garbage in every slot that it was to write."""
        self.num_steps += 1
        self.num_tokens += batch.num_tokens
        slots, size = self._slots, self.block_size
        fails, self.fail_next = self.fail_next, False
        # A failing step has saved nothing.
        for block_id, host_id in batch.swap_outs:
            self._host[host_id] = GARBAGE if fails else slots[block_id]
        for host_id, block_id in batch.swap_ins:
            slots[block_id] = self._host[host_id]
        for source, target in batch.block_copies:
            slots[target] = slots[source]
        tables, histories = batch.block_indices, []
        query_begins, block_begins = batch.query_begins.tolist(), batch.block_begins.tolist()
        input_ids = np.full(batch.num_tokens, GARBAGE, np.int32) if fails else batch.input_ids.astype(np.int32)
        positions = batch.positions.tolist()
        for index, past in enumerate(batch.past_lens.tolist()):
            begin, end = query_begins[index], query_begins[index + 1]
            table = tables[block_begins[index] : block_begins[index + 1]]
            context_len = past + end - begin
            assert len(table) == -(-context_len // size), "the table is not trimmed to the blocks in use"
            if end - begin == 1:
                slots[table[past // size], past % size] = input_ids[begin]
                assert positions[begin] == past
            else:
                where = np.arange(past, context_len)
                assert (batch.positions[begin:end] == where).all()
                slots[table[where // size], where % size] = input_ids[begin:end]
            histories.append((begin, past, table))
        assert batch.max_context_len == max(
            past + query_begins[i + 1] - query_begins[i] for i, past in enumerate(batch.past_lens.tolist())
        )
        if self.lose_next:
            self.lose_next = False
            slots[:] = GARBAGE
            self._host[:] = GARBAGE
            raise CacheLost("injected loss")
        if fails:
            raise RuntimeError("injected fault")
        return BatchResult(None, np.array(self._hashes(batch, histories), np.int64))

    def _hashes(self, batch: Batch, histories: list[tuple[int, int, npt.NDArray[np.int32]]]) -> list[int]:
        hashes = []
        owners = batch.query_begins.searchsorted(batch.logit_indices, side="right") - 1
        for row, owner in zip(batch.logit_indices.tolist(), owners.tolist(), strict=True):
            begin, past, table = histories[owner]
            end = past + row - begin + 1
            first = max(0, end - self.window) if self.window else 0
            first_block = first // self.block_size
            seen = self._slots[table[first_block : -(-end // self.block_size)]].ravel()
            offset = first_block * self.block_size
            hashes.append(history_hash(seen[first - offset : end - offset]))
        return hashes

    def describe(self) -> dict[str, str]:
        return {"executor": "fake"}

    def close(self) -> None:
        pass
