"""Attention of a ragged batch over paged keys and values.

One kernel, three launches of it:

    decode, no split    one program a (sequence, KV head) walks the whole context and writes the output
    decode, split-K     one program a (sequence, KV head, split) walks a share of the context and leaves a normalised
                        partial output and its log-sum-exp; a second kernel merges them (FlashDecoding)
    chunked prefill     one program a (tile of query tokens, KV head); tiles never cross sequences

A step may hold both kinds: the decode launch takes the sequences with one new token and the prefill launch the
others, each leaving what is not its own, so a batch needs no ordering. All query heads that share a KV head are rows
of one tile, so K and V are read once for the group (GQA). Lengths are read from device memory and the number of
splits is fixed by the launch, never by the lengths: the same launch can be replayed from a CUDA graph.

Softmax is the online one of FlashAttention (Dao et al. 2022, algorithm 1) in base 2, accumulated in f32. Quantised
keys scale the scores, quantised values scale the weights; integers up to 127 and E4M3 values are exact in fp16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.kernels.language import jit, tl
from trtdecode.kernels.launch import Kernel, Launcher, next_power_of_2
from trtdecode.kernels.pages import KvPages, dequantise

LOG2E = 1.4426950408889634
#: tl.dot's smallest tile; a decode program has only `group` rows in it.
SMALLEST_TILE = 16


@dataclass(frozen=True)
class RaggedBatch:
    """Where a step's sequences are: device tensors, valid during the launch."""

    context_lens: torch.Tensor  # i32 [B] cached + new tokens; 0 marks a padding row, whose output is zeros
    query_begins: torch.Tensor  # i32 [B + 1] half-open ranges into T
    block_indices: torch.Tensor  # i32 [>= sum of blocks]
    block_begins: torch.Tensor  # i32 [B + 1] half-open ranges into block_indices
    num_tokens: int  # T
    has_decode: bool  # some sequence has exactly one new token
    has_prefill: bool  # some sequence has more than one

    @property
    def num_sequences(self) -> int:
        return int(self.context_lens.shape[0])


@dataclass(frozen=True)
class SplitWorkspace:
    """Partial results of split-K; allocated once, since nothing may be allocated while a graph is captured."""

    output: torch.Tensor  # f32 [max_num_seqs, num_heads, num_splits, head_dim]
    log_sum: torch.Tensor  # f32 [max_num_seqs, num_heads, num_splits], base 2; -inf where a split had no keys

    @property
    def num_splits(self) -> int:
        return int(self.output.shape[2])

    @classmethod
    def of(
        cls, output: torch.Tensor, log_sum: torch.Tensor, spec: AttentionSpec, num_seqs: int, num_splits: int
    ) -> SplitWorkspace:
        """Views of two flat f32 buffers that hold at least num_seqs * num_heads * num_splits (* head_dim) values."""
        shape = (num_seqs, spec.num_heads, num_splits)
        count = num_seqs * spec.num_heads * num_splits
        return cls(output[: count * spec.head_dim].view(*shape, spec.head_dim), log_sum[:count].view(shape))

    @classmethod
    def allocate(cls, spec: AttentionSpec, max_num_seqs: int, num_splits: int, device: str) -> SplitWorkspace:
        """Workspace for decode batches of up to `max_num_seqs`; one serves all layers of a stream."""
        shape = (max_num_seqs, spec.num_heads, num_splits)
        return cls(
            torch.empty((*shape, spec.head_dim), dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
        )


def group_of(spec: AttentionSpec) -> int:
    """Query heads that share a KV head; query head h uses KV head h // group."""
    return spec.num_heads // spec.num_kv_heads


def choose_num_splits(num_sequences: int, num_kv_heads: int, num_multiprocessors: int, most: int = 32) -> int:
    """Splits that give every multiprocessor about two programs: a power of two in 1..most.

    Depends on the captured batch size and the device only, never on lengths, so that a replay needs no new launch.
    """
    wanted = 2 * num_multiprocessors // max(1, num_sequences * num_kv_heads)
    return min(most, 1 << max(0, wanted.bit_length() - 1))


def paged_attention_reference(
    query: torch.Tensor, pages: KvPages, batch: RaggedBatch, spec: AttentionSpec
) -> torch.Tensor:
    """The same in plain torch, f32, one sequence and head at a time: [T, num_heads * head_dim]."""
    output = torch.zeros_like(query, dtype=torch.float32)
    keys, values = dequantise(pages.key, pages.key_scale), dequantise(pages.value, pages.value_scale)
    begins, tables = batch.query_begins.tolist(), batch.block_begins.tolist()
    for index, context in enumerate(batch.context_lens.tolist()):
        if context == 0:
            continue
        begin, end = begins[index], begins[index + 1]
        blocks = batch.block_indices[tables[index] : tables[index + 1]].long()
        position = torch.arange(context - (end - begin), context, device=query.device)[:, None]
        slot = torch.arange(context, device=query.device)[None, :]
        visible = slot <= position
        if spec.sliding_window:
            visible &= slot > position - spec.sliding_window
        for head in range(spec.num_heads):
            kv_head, columns = head // group_of(spec), slice(head * spec.head_dim, (head + 1) * spec.head_dim)
            k = keys[blocks, kv_head].reshape(-1, spec.head_dim)[:context]
            v = values[blocks, kv_head].reshape(-1, spec.head_dim)[:context]
            scores = query[begin:end, columns].to(torch.float32) @ k.T * spec.scale
            if spec.softcap:
                scores = spec.softcap * torch.tanh(scores / spec.softcap)
            if spec.alibi_slopes:
                scores = scores - spec.alibi_slopes[head] * (position - slot)
            weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
            output[begin:end, columns] = weights @ v
    return output.to(query.dtype)


@jit
def _sequence_of_tile(tile, query_begins, num_sequences, TOKENS: tl.constexpr):
    """The sequence b that a prefill tile belongs to: the last with query_begins[b] // TOKENS + b <= tile.

    Sequence b's tiles start at that number, which leaves each at least the ceil(len / TOKENS) it needs (and sometimes
    one more, which finds no tokens), so the grid needs no lengths: T // TOKENS + B programs are enough.
    """
    low = tl.zeros((), tl.int32)
    high = low + num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        starts_at = tl.load(query_begins + middle) // TOKENS + middle
        low = tl.where(starts_at <= tile, middle, low)
        high = tl.where(starts_at <= tile, high, middle)
    return low


@jit(do_not_specialize=["num_sequences", "num_kv_heads", "num_splits", "sliding_window"])
def _attend_kernel(
    query,
    key_pages,
    value_pages,
    key_scales,
    value_scales,
    slopes,
    output,
    partial_output,
    partial_log_sum,
    context_lens,
    query_begins,
    block_indices,
    block_begins,
    num_sequences,
    num_kv_heads,
    num_splits,
    sliding_window,
    query_row_stride,
    output_row_stride,
    scale,
    softcap,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM_PAD: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    DECODE: tl.constexpr,
    SPLIT: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    QUANTISATION: tl.constexpr,
):
    TOKENS: tl.constexpr = ROWS // GROUP_PAD
    if DECODE:
        sequence = tl.program_id(0)
        first_token = tl.zeros((), tl.int32)
    else:
        sequence = _sequence_of_tile(tl.program_id(0), query_begins, num_sequences, TOKENS)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    query_begin = tl.load(query_begins + sequence)
    query_len = tl.load(query_begins + sequence + 1) - query_begin
    if DECODE:
        if query_len != 1:
            return
    else:
        first_token = (tl.program_id(0) - (query_begin // TOKENS + sequence)) * TOKENS
        if (query_len <= 1) | (first_token >= query_len):
            return

    # Rows of the tile: GROUP_PAD heads of one token, then of the next.
    row = tl.arange(0, ROWS)
    token = first_token + row // GROUP_PAD
    head_in_group = row % GROUP_PAD
    row_used = (token < query_len) & (head_in_group < GROUP)
    head = kv_head * GROUP + head_in_group
    dim = tl.arange(0, DIM_PAD)
    dim_used = dim < HEAD_DIM
    row_in_batch = (query_begin + token).to(tl.int64)
    tile_used = row_used[:, None] & dim_used[None, :]
    tile_offsets = head[:, None] * HEAD_DIM + dim[None, :]
    q = tl.load(query + row_in_batch[:, None] * query_row_stride + tile_offsets, mask=tile_used, other=0.0)

    # Keys in [low, high) are visible to some row; tiles of them are shared out over the splits.
    context = tl.load(context_lens + sequence)
    position = context - query_len + token
    first_position = context - query_len + first_token
    high = tl.minimum(context, first_position + TOKENS)
    low = tl.zeros((), tl.int32)
    if sliding_window > 0:
        low = tl.maximum(0, first_position - sliding_window + 1)
    first_tile = low // TILE
    end_tile = (high + TILE - 1) // TILE
    if SPLIT:
        share = (end_tile - first_tile + num_splits - 1) // num_splits
        first_tile = first_tile + split * share
        end_tile = tl.minimum(end_tile, first_tile + share)

    if ALIBI:
        slope = tl.load(slopes + head, mask=row_used, other=0.0)
    table = block_indices + tl.load(block_begins + sequence)
    slot_in_tile = tl.arange(0, TILE)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, DIM_PAD], tl.float32)
    for tile in range(first_tile, end_tile):
        slot = tile * TILE + slot_in_tile
        slot_used = slot < high
        block = tl.load(table + slot // BLOCK_SIZE, mask=slot_used, other=0).to(tl.int64)
        page_row = (block * num_kv_heads + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE
        # K is loaded transposed: the dot wants [DIM_PAD, TILE].
        k = tl.load(
            key_pages + page_row[None, :] * HEAD_DIM + dim[:, None],
            mask=dim_used[:, None] & slot_used[None, :],
            other=0.0,
        )
        scores = tl.dot(q, k.to(q.dtype), input_precision="ieee") * scale
        if QUANTISATION != "none":
            scores *= tl.load(key_scales + page_row, mask=slot_used, other=0.0)[None, :]
        if SOFTCAP:
            # tanh without a math library; the exponent is never positive, so nothing overflows.
            decayed = tl.exp(-2.0 * tl.abs(scores) / softcap)
            capped = softcap * (1.0 - decayed) / (1.0 + decayed)
            scores = tl.where(scores < 0, -capped, capped)
        if ALIBI:
            scores -= slope[:, None] * (position[:, None] - slot[None, :]).to(tl.float32)
        visible = slot_used[None, :] & (slot[None, :] <= position[:, None])
        if sliding_window > 0:
            visible &= slot[None, :] > position[:, None] - sliding_window
        scores = tl.where(visible, scores * 1.4426950408889634, float("-inf"))

        new_best = tl.maximum(best, tl.max(scores, axis=1))
        # A row that has seen no key yet: subtract 0, so that exp2(-inf) is 0 and not NaN.
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(best - shift)
        total = total * decay + tl.sum(weights, axis=1)
        best = new_best

        v = tl.load(
            value_pages + page_row[:, None] * HEAD_DIM + dim[None, :],
            mask=slot_used[:, None] & dim_used[None, :],
            other=0.0,
        )
        if QUANTISATION == "none":
            step = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        else:
            # Scales relative to the tile's largest: weights stay in fp16's range however small the values are.
            v_scale = tl.load(value_scales + page_row, mask=slot_used, other=0.0)
            largest = tl.max(v_scale, axis=0)
            relative = v_scale / tl.where(largest > 0, largest, 1.0)
            step = tl.dot((weights * relative[None, :]).to(q.dtype), v.to(q.dtype), input_precision="ieee") * largest
        mixed = mixed * decay[:, None] + step

    result = mixed / tl.where(total > 0, total, 1.0)[:, None]
    if SPLIT:
        partial_row = (sequence * num_kv_heads * GROUP + head).to(tl.int64) * num_splits + split
        tl.store(partial_output + partial_row[:, None] * HEAD_DIM + dim[None, :], result, mask=tile_used)
        log_sum = tl.where(total > 0, best + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
        tl.store(partial_log_sum + partial_row, log_sum, mask=row_used)
    else:
        target = output + row_in_batch[:, None] * output_row_stride + tile_offsets
        tl.store(target, result.to(output.dtype.element_ty), mask=tile_used)


@jit(do_not_specialize=["num_heads", "num_splits"])
def _merge_kernel(
    partial_output,
    partial_log_sum,
    output,
    query_begins,
    num_heads,
    num_splits,
    output_row_stride,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
):
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    query_begin = tl.load(query_begins + sequence)
    if tl.load(query_begins + sequence + 1) - query_begin != 1:
        return
    dim = tl.arange(0, DIM_PAD)
    dim_used = dim < HEAD_DIM
    first = (sequence * num_heads + head).to(tl.int64) * num_splits
    best = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    mixed = tl.zeros([DIM_PAD], tl.float32)
    for split in range(num_splits):
        log_sum = tl.load(partial_log_sum + first + split)
        part = tl.load(partial_output + (first + split) * HEAD_DIM + dim, mask=dim_used, other=0.0)
        new_best = tl.maximum(best, log_sum)
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weight = tl.exp2(log_sum - shift)
        decay = tl.exp2(best - shift)
        mixed = mixed * decay + part * weight
        total = total * decay + weight
        best = new_best
    result = mixed / tl.where(total > 0, total, 1.0)
    target = output + query_begin.to(tl.int64) * output_row_stride + head * HEAD_DIM + dim
    tl.store(target, result.to(output.dtype.element_ty), mask=dim_used)


#: By (decode, wide): four warps, or eight where four would spill (the table of `aot` shows registers and stack).
ATTEND = {
    (True, False): Kernel("attend_decode", _attend_kernel, num_warps=4, num_stages=3),
    (True, True): Kernel("attend_decode", _attend_kernel, num_warps=8, num_stages=3),
    (False, False): Kernel("attend_prefill", _attend_kernel, num_warps=4, num_stages=2),
    (False, True): Kernel("attend_prefill", _attend_kernel, num_warps=8, num_stages=2),
}
MERGE = Kernel("attend_merge", _merge_kernel, num_warps=1, num_stages=1)


def paged_attention(
    launcher: Launcher,
    query: torch.Tensor,
    pages: KvPages,
    batch: RaggedBatch,
    spec: AttentionSpec,
    workspace: SplitWorkspace,
    output: torch.Tensor,
    slopes: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attends with every new token of the batch; its own K and V must already be in the pages (kv_write).

    Args:
        query: [T, num_heads * head_dim]; rows may be slices of one merged QKV output.
        workspace: for at least B sequences; one split means no split-K.
        output: [T, num_heads * head_dim], query's dtype, written in full.
        slopes: f32 [num_heads], spec.alibi_slopes on the device; None where the spec has none.

    Returns:
        output.
    """
    num_tokens, width = query.shape
    assert width == spec.num_heads * spec.head_dim, f"query rows hold {width} values, attributes are {spec}"
    assert num_tokens == batch.num_tokens and output.shape == query.shape
    assert (pages.num_kv_heads, pages.head_dim) == (spec.num_kv_heads, spec.head_dim)
    assert query.stride(1) == 1 and output.stride(1) == 1, "a row's values must be contiguous"
    assert (slopes is not None) == bool(spec.alibi_slopes), "slopes must be given where the spec has them"
    assert workspace.output.shape[0] >= batch.num_sequences, "the workspace holds too few sequences"
    if batch.has_decode:
        _launch(launcher, query, pages, batch, spec, workspace, output, slopes, decode=True)
    if batch.has_prefill:
        _launch(launcher, query, pages, batch, spec, workspace, output, slopes, decode=False)
    return output


def _launch(
    launcher: Launcher,
    query: torch.Tensor,
    pages: KvPages,
    batch: RaggedBatch,
    spec: AttentionSpec,
    workspace: SplitWorkspace,
    output: torch.Tensor,
    slopes: torch.Tensor | None,
    *,
    decode: bool,
) -> None:
    group = group_of(spec)
    group_pad = next_power_of_2(group)
    dim_pad = max(SMALLEST_TILE, next_power_of_2(spec.head_dim))
    rows = max(SMALLEST_TILE, group_pad) if decode else max(64, group_pad)
    split = decode and workspace.num_splits > 1
    quantised = pages.quantisation != "none"
    tiles = batch.num_sequences if decode else batch.num_tokens // (rows // group_pad) + batch.num_sequences
    # 64 rows of head_dim 128 need more registers, and so does the conversion of one-byte pages.
    wide = (dim_pad >= 128 and quantised) if decode else (dim_pad >= 128 or quantised)
    launcher(
        ATTEND[decode, wide],
        (tiles, spec.num_kv_heads, workspace.num_splits if split else 1),
        (
            query,
            pages.key,
            pages.value,
            # Unquantised pages have no scales; the pointer is then never used.
            pages.key_scale if quantised else pages.key,
            pages.value_scale if quantised else pages.value,
            workspace.log_sum if slopes is None else slopes,  # a pointer of the right type, unused without slopes
            output,
            workspace.output,
            workspace.log_sum,
            batch.context_lens,
            batch.query_begins,
            batch.block_indices,
            batch.block_begins,
            batch.num_sequences,
            spec.num_kv_heads,
            workspace.num_splits,
            spec.sliding_window,
            query.stride(0),
            output.stride(0),
            float(spec.scale),
            float(spec.softcap),
        ),
        {
            "HEAD_DIM": spec.head_dim,
            "GROUP": group,
            "BLOCK_SIZE": pages.block_size,
            "DIM_PAD": dim_pad,
            "GROUP_PAD": group_pad,
            "ROWS": rows,
            "TILE": tile_size(dim_pad, pages, decode=decode),
            "DECODE": decode,
            "SPLIT": split,
            "SOFTCAP": spec.softcap > 0,
            "ALIBI": slopes is not None,
            "QUANTISATION": pages.quantisation,
        },
    )
    if split:
        launcher(
            MERGE,
            (batch.num_sequences, spec.num_heads, 1),
            (
                workspace.output,
                workspace.log_sum,
                output,
                batch.query_begins,
                spec.num_heads,
                workspace.num_splits,
                output.stride(0),
            ),
            {"HEAD_DIM": spec.head_dim, "DIM_PAD": next_power_of_2(spec.head_dim)},
        )


def tile_size(dim_pad: int, pages: KvPages, *, decode: bool) -> int:
    """Keys of one loop step: 64, or what keeps a [tile, head] pair of operands in registers.

    Converting one-byte values takes registers for both forms, beside the 64 rows of prefill above all; f32 operands
    take twice as many as fp16's. Fewer keys there.
    """
    itemsize = pages.key.dtype.itemsize
    budget = {1: 4096, 2: 8192, 4: 2048}[itemsize]
    most = 32 if itemsize == 1 and not decode else 64
    return max(SMALLEST_TILE, min(most, budget // dim_pad))
