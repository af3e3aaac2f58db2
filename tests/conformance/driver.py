"""Drives an executor directly, without a scheduler: sequences with block tables, and ragged batches of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from trtdecode.executor.base import Batch, Executor


@dataclass
class Sequence:
    """Tokens, how many of them are in the cache, and the blocks that hold them."""

    tokens: list[int]
    blocks: list[int]
    num_computed: int = 0


@dataclass
class Driver:
    """Hands out blocks and builds batches. `block_order` fixes which blocks are used, and in which order; by default
    all but block 0, which is no sequence's (`executor/base.py`)."""

    executor: Executor
    block_order: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free = list(self.block_order or range(1, self.executor.num_blocks))

    def sequence(self, tokens: list[int], *, room: int = 0, prefix: Sequence | None = None) -> Sequence:
        """A new sequence with blocks for its tokens and `room` more; whole computed blocks of `prefix` are shared."""
        shared = prefix.num_computed // self.executor.block_size if prefix else 0
        num_blocks = -(-(len(tokens) + room) // self.executor.block_size)
        blocks = list(prefix.blocks[:shared]) if prefix else []
        blocks += [self._free.pop(0) for _ in range(num_blocks - shared)]
        return Sequence(list(tokens), blocks, shared * self.executor.block_size)

    def release(self, sequence: Sequence) -> None:
        self._free += sequence.blocks

    def step(self, *work: tuple[Sequence, int], argmax_only: bool = False, every_row: bool = False) -> np.ndarray:
        """Computes `count` more tokens of each sequence in one batch.

        Returns a copy of the logits (argmax with `argmax_only`): one row a sequence, or one a token with `every_row`.
        """
        batch = self.batch(*work, argmax_only=argmax_only, every_row=every_row)
        result = self.executor.execute(batch)
        for sequence, count in work:
            sequence.num_computed += count
        chosen = result.argmax if argmax_only else result.logits
        assert chosen is not None
        return np.array(chosen)

    def batch(self, *work: tuple[Sequence, int], argmax_only: bool = False, every_row: bool = False) -> Batch:
        """The batch of `step`, not yet executed."""
        spans = [(seq, seq.num_computed, seq.num_computed + count) for seq, count in work]
        tables = [seq.blocks[: -(-end // self.executor.block_size)] for seq, _, end in spans]
        query_begins = np.cumsum([0, *(count for _, count in work)]).astype(np.int32)
        num_tokens = int(query_begins[-1])
        return Batch(
            input_ids=np.array([token for seq, begin, end in spans for token in seq.tokens[begin:end]], np.int64),
            positions=np.concatenate([np.arange(begin, end, dtype=np.int64) for _, begin, end in spans]),
            past_lens=np.array([begin for _, begin, _ in spans], np.int32),
            query_begins=query_begins,
            block_indices=np.array([block for table in tables for block in table], np.int32),
            block_begins=np.cumsum([0, *map(len, tables)]).astype(np.int32),
            max_context_len=max(end for _, _, end in spans),
            logit_indices=np.arange(num_tokens) if every_row else (query_begins[1:] - 1).astype(np.int64),
            argmax_only=argmax_only,
        )

    def prefill(self, sequence: Sequence, chunk: int = 0) -> np.ndarray:
        """Computes all tokens, in chunks when asked; returns the logits of every computed position."""
        rows = []
        while left := len(sequence.tokens) - sequence.num_computed:
            rows.append(self.step((sequence, min(left, chunk or left)), every_row=True))
        return np.concatenate(rows)

    def greedy(self, sequences: list[Sequence], num_tokens: int) -> list[list[int]]:
        """Prefills together, then decodes together; returns what each sequence added."""
        starts = [len(sequence.tokens) for sequence in sequences]
        for _ in range(num_tokens):
            work = [(sequence, len(sequence.tokens) - sequence.num_computed) for sequence in sequences]
            for sequence, row in zip(sequences, self.step(*work), strict=True):
                sequence.tokens.append(int(row.argmax()))
        return [sequence.tokens[start:] for sequence, start in zip(sequences, starts, strict=True)]
