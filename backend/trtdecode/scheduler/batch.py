"""BatchFromSchedule: turns a step's decisions into the arrays that an executor takes.

Everything but the token ids is computed with numpy over all sequences at once; the block tables are gathered from the
cache manager's rows. Buffers are allocated once and reused, so a batch is valid until the builder's next `build`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trtdecode.executor.base import SAMPLING_ROW, Batch, BatchResult
from trtdecode.kv_cache.manager import KVCacheManager
from trtdecode.request import Request, RequestState
from trtdecode.scheduler.scheduler import Schedule


class BatchFromSchedule:
    """Builds one batch at a time into its own buffers; overlapped steps use two builders in turn.

    Args:
        kv: whose block tables to gather.
        max_num_seqs, max_num_batched_tokens: sizes of the buffers.
    """

    def __init__(self, kv: KVCacheManager, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._kv = kv
        self._input_ids = np.zeros(max_num_batched_tokens, np.int64)
        self._positions = np.zeros(max_num_batched_tokens, np.int64)
        self._query_begins = np.zeros(max_num_seqs + 1, np.int32)
        self._block_begins = np.zeros(max_num_seqs + 1, np.int32)
        self._block_indices = np.zeros(max_num_seqs, np.int32)  # grows to the longest batch seen
        self._range = np.arange(max_num_batched_tokens, dtype=np.int64)
        self._block_range = np.arange(kv.block_tables.shape[1], dtype=np.int32)

    def build(self, plan: Schedule) -> Batch:
        """The batch of a schedule. Tokens that a step in flight will choose are 0 until `fill_pending`.

        Raises:
            AssertionError: the step would write a block that is shared or findable (a scheduler bug).
        """
        num_seqs, num_tokens = len(plan.requests), plan.num_tokens
        rows = np.array([r.blocks.row for r in plan.requests if r.blocks is not None], np.int32)
        past_lens = np.array(plan.num_past_tokens, np.int32)
        new_lens = np.array(plan.num_new_tokens, np.int32)
        context_lens = past_lens + new_lens
        self._kv.assert_writable(rows, past_lens, context_lens)

        query_begins = self._query_begins[: num_seqs + 1]
        new_lens.cumsum(out=query_begins[1:])
        positions = self._positions[:num_tokens]
        if num_tokens == num_seqs:
            positions[:] = past_lens
        else:
            np.add((past_lens - query_begins[:-1]).repeat(new_lens), self._range[:num_tokens], out=positions)
        input_ids = self._input_ids[:num_tokens]
        input_ids[:] = _token_ids(plan)
        block_indices, block_begins = self._gather_blocks(rows, context_lens)

        ends = query_begins[1:].astype(np.int64)
        if plan.unsampled_entries:
            ends = np.delete(ends, plan.unsampled_entries)
        logit_indices = ends - 1
        plan.prompt_ranges, prompt_rows = _prompt_logits(plan, query_begins)
        if prompt_rows:
            logit_indices = np.concatenate([logit_indices, *prompt_rows])
        return Batch(
            input_ids=input_ids,
            positions=positions,
            past_lens=past_lens,
            query_begins=query_begins,
            block_indices=block_indices,
            block_begins=block_begins,
            max_context_len=int(context_lens.max()),
            logit_indices=logit_indices,
            argmax_only=not prompt_rows and not any(request.needs_logits for request in plan.sampled),
            sampling=None if prompt_rows else _sampling_rows(plan),
            block_copies=plan.block_copies,
            swap_outs=plan.swap_outs,
            swap_ins=plan.swap_ins,
        )

    def _gather_blocks(
        self, rows: npt.NDArray[np.int32], context_lens: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        num_blocks = (context_lens + (self._kv.block_size - 1)) // self._kv.block_size
        block_begins = self._block_begins[: len(rows) + 1]
        num_blocks.cumsum(out=block_begins[1:])
        total, widest = int(block_begins[-1]), int(num_blocks.max())
        if total > len(self._block_indices):
            self._block_indices = np.zeros(2 * total, np.int32)
        block_indices = self._block_indices[:total]
        in_use = self._block_range[:widest] < num_blocks[:, None]
        block_indices[:] = self._kv.block_tables[rows, :widest][in_use]
        return block_indices, block_begins


def fill_pending(batch: Batch, plan: Schedule) -> None:
    """Puts in the tokens that were still in flight when the batch was built: each is its sequence's last token."""
    for request, past, begin in zip(plan.requests, plan.num_past_tokens, batch.query_begins[:-1].tolist(), strict=True):
        if past + 1 == request.num_tokens and request.output_ids:
            batch.input_ids[begin] = request.output_ids[-1]


def _token_ids(plan: Schedule) -> list[int]:
    token_ids: list[int] = []
    for request, past, new in zip(plan.requests, plan.num_past_tokens, plan.num_new_tokens, strict=True):
        if new == 1:
            index = past - len(request.prompt_ids)
            output_ids = request.output_ids
            if index < 0:
                token_ids.append(request.prompt_ids[past])
            else:
                token_ids.append(output_ids[index] if index < len(output_ids) else 0)
        else:
            token_ids.extend(request.token_slice(past, past + new))
    return token_ids


def _sampling_rows(plan: Schedule) -> npt.NDArray[np.void] | None:
    """How each sampled row's token is to be chosen; None where one of them needs its logits on the host."""
    chosen_by = [request.sampling_row for request in plan.sampled]
    if None in chosen_by:
        return None
    rows = np.array(chosen_by, SAMPLING_ROW)
    skipped = set(plan.unsampled_entries)
    ends = zip(plan.num_past_tokens, plan.num_new_tokens, strict=True)
    rows["position"] = [past + new for entry, (past, new) in enumerate(ends) if entry not in skipped]
    return rows


def _prompt_logits(
    plan: Schedule, query_begins: npt.NDArray[np.int32]
) -> tuple[list[tuple[Request, int, int]], list[npt.NDArray[np.int64]]]:
    """Prompt positions of this step whose logits are wanted: as (request, first, end), and as rows of the batch.

    The row of position p gives the log-probability of token p + 1, so the last prompt token's is not among them.
    """
    ranges, rows = [], []
    for entry, request in enumerate(plan.requests):
        if request.params.prompt_logprobs is None or not request.needs_prompt_logits:
            continue
        past = plan.num_past_tokens[entry]
        first = max(past, len(request.prompt_logprobs) - 1)
        end = min(past + plan.num_new_tokens[entry], request.num_prompt_tokens - 1)
        if first < end:
            ranges.append((request, first, end))
            rows.append(np.arange(first, end, dtype=np.int64) + (int(query_begins[entry]) - past))
    return ranges, rows


def without_ended(plan: Schedule, result: BatchResult) -> BatchResult:
    """Takes the sampled requests that ended while the step was in flight out of the plan and their rows out of the
    result; with the plain loop there are none."""
    live = [row for row, request in enumerate(plan.sampled) if request.state is not RequestState.FINISHED]
    num_sampled = len(plan.sampled)
    if len(live) == num_sampled:
        return result
    plan.sampled = [plan.sampled[row] for row in live]
    logits, chosen = result.logits, (result.argmax, result.token_ids)
    num_rows = len(logits) if logits is not None else num_sampled
    rows = [*live, *range(num_sampled, num_rows)]
    return BatchResult(
        logits if logits is None else logits[rows], *(ids if ids is None else ids[rows] for ids in chosen)
    )
