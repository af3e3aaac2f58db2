"""What the loop asks of an executor, and the names of the graph's tensors (DESIGN: the graph contract).

An executor is one file that passes `tests/conformance/`. It owns the weights and the KV blocks; it knows nothing of
requests. Block 0 is the null block: the KV cache manager never gives it to a sequence. Table entries that a sliding
window has passed point to it (they are masked), and an executor that pads a batch may write its padding there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

#: Inputs of the graph besides the caches, in the order of the contract.
GRAPH_INPUTS = (
    "input_ids",
    "positions",
    "past_lens",
    "query_begins",
    "block_indices",
    "block_begins",
    "max_context_len",
    "logit_indices",
)
GRAPH_OUTPUT = "logits"
#: f32[T, hidden] between pipeline stages: every stage but the first has the input, every one but the last the output
#: (instead of logits).
HIDDEN_INPUT = "hidden_in"
HIDDEN_OUTPUT = "hidden_out"
OPERATOR_DOMAIN = "trtdecode"


#: How one row's token is chosen, where the executor chooses it (`sampling/` has the meaning of each).
SAMPLING_ROW = np.dtype(
    [
        ("seed", "<u8"),
        ("sample_index", "<i8"),
        ("position", "<i8"),  # that the new token will have
        ("top_k", "<i8"),  # 0: all
        ("top_p", "<f8"),  # 1: all
        ("temperature", "<f4"),  # 0: greedy
        ("min_p_limit", "<f4"),  # least scaled logit that min-p keeps; -inf: all
    ]
)


@dataclass(slots=True)
class Batch:
    """One step's work: a ragged list of tokens of B sequences, T tokens in all, S rows that need logits.

    The arrays belong to the batch builder, which may reuse them for the next step: an executor that needs them
    after `execute` returns must copy.
    """

    input_ids: npt.NDArray[np.int64]  # [T]
    positions: npt.NDArray[np.int64]  # [T]
    past_lens: npt.NDArray[np.int32]  # [B] tokens of each sequence already in the cache
    query_begins: npt.NDArray[np.int32]  # [B + 1] half-open ranges into T
    block_indices: npt.NDArray[np.int32]  # concatenated block tables, trimmed to the blocks in use
    block_begins: npt.NDArray[np.int32]  # [B + 1] half-open ranges into block_indices
    max_context_len: int  # max over sequences of past + new tokens
    logit_indices: npt.NDArray[np.int64]  # [S] positions in T whose logits are wanted
    argmax_only: bool = False  # every row is plain greedy: the executor may skip returning logits
    sampling: npt.NDArray[np.void] | None = None  # [S] of SAMPLING_ROW: the executor may return tokens, not logits
    #: Three kinds of copies before the step, in this order, each list in its own order.
    swap_outs: list[tuple[int, int]] = field(default_factory=list)  # (block, host block)
    swap_ins: list[tuple[int, int]] = field(default_factory=list)  # (host block, block)
    block_copies: list[tuple[int, int]] = field(default_factory=list)  # (source, target)

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.past_lens)


@dataclass(slots=True)
class BatchResult:
    """What a step gives back. Buffers belong to the executor and are valid until the next `execute`."""

    logits: npt.NDArray[np.float32] | None  # [S, V]; None only with one of the others
    argmax: npt.NDArray[np.int64] | None = None  # [S] where the batch was argmax_only; the lowest id wins a tie
    token_ids: npt.NDArray[np.int64] | None = None  # [S] where the batch had `sampling`; negative: stages.NOT_FINITE


class CacheLost(Exception):
    """A step failed and what all blocks held is gone with it: every sequence that has blocks must end or start over."""


class Executor(Protocol):
    """Runs batches. Not thread-safe: the loop's thread is the only caller."""

    name: str  # "openvino", "tensorrt", "torch"
    block_size: int  # KV slots a block
    num_blocks: int  # blocks in the pool
    num_host_blocks: int  # blocks of its host pool, where K/V of preempted sequences wait; 0: it cannot swap
    chooses_tokens: bool  # whether it takes `Batch.sampling`

    def execute(self, batch: Batch) -> BatchResult:
        """Writes the step's K/V into its blocks, attends, and returns logits for `batch.logit_indices`.

        Raises whatever the runtime raises; the loop turns it into ExecutorFailed for this batch's requests, after
        CacheLost for all that run.
        """
        ...

    def describe(self) -> dict[str, str]:
        """Facts for the log and the model's metadata: device, precision, KV layout and bytes."""
        ...

    def close(self) -> None:
        """Frees the runtime. Idempotent."""
        ...
