"""Which blocks each running sequence has: prefix hits, allocation, forks, window freeing, preemption and swapping.

A sequence's table, left to right (half-open ranges of table entries):

    [0, num_freed)              null block: every layer's window has slid past (only where every layer slides)
    [num_freed, num_published)  full, shared or offered to the prefix cache; never written again
    [num_published, num_blocks) owned by this sequence alone; steps write here

Allocation has three outcomes: the new block ids, None (not now: preempt somebody or wait), or InvalidRequest from
`check_fits` at admission (never fits). Blocks are allocated exactly as far as the step writes, so what is allocated
but unused is less than one block a sequence, half a block on average.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from trtdecode.errors import InvalidRequest
from trtdecode.kv_cache.block_hash import BlockKey, ChainHash, blake2b_chain, content_of, root_digest
from trtdecode.kv_cache.block_pool import NULL_BLOCK, BlockPool, PoolState
from trtdecode.kv_cache.host_pool import HostPool
from trtdecode.kv_cache.sequence_blocks import NO_PREFIX, CacheStats, Prefix, SequenceBlocks, SwappedBlocks, Waste
from trtdecode.request import Request


class KVCacheManager:
    """Gives blocks to running requests. One thread.

    Args:
        num_blocks: blocks of the executor's pool, the null block included.
        block_size: tokens a block.
        max_num_seqs: rows of the block table: sequences that can hold blocks at once.
        max_context_len: longest sequence, in tokens.
        max_step_tokens: most tokens of one sequence in one step; only used with a window.
        window: tokens that the widest layer sees if *every* layer slides, else 0 (nothing is freed early).
        num_host_blocks: blocks of the host pool; 0: preempted requests are always recomputed.
        enable_prefix_caching: publish full blocks and look prefixes up; forks share blocks either way.
        chain_secret: of the hash chain; default random. A replay passes the recorded one.
        chain_hash: for tests.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_num_seqs: int,
        max_context_len: int,
        max_step_tokens: int = 1,
        window: int = 0,
        num_host_blocks: int = 0,
        enable_prefix_caching: bool = True,
        chain_secret: bytes | None = None,
        chain_hash: ChainHash = blake2b_chain,
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.host = HostPool(num_host_blocks)
        self.block_size = block_size
        self.window = window
        self.enable_prefix_caching = enable_prefix_caching
        self.stats = CacheStats()
        self.block_tables: npt.NDArray[np.int32] = np.zeros((max_num_seqs, -(-max_context_len // block_size)), np.int32)
        self._max_step_tokens = max_step_tokens
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self.max_context_len = max_context_len
        self.chain_secret = os.urandom(16) if chain_secret is None else chain_secret
        self._chain = chain_hash

    @property
    def max_cached_tokens(self) -> int:
        """Tokens of one sequence that the cache can take when that sequence has the pool to itself."""
        num_usable = self.pool.num_usable
        longest = self.block_tables.shape[1] * self.block_size
        return longest if self.num_resident_blocks(longest) <= num_usable else num_usable * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_resident_blocks(self, num_tokens: int) -> int:
        """Most blocks that a sequence holds at once on its way to `num_tokens`: all, or what the window needs."""
        num_blocks = self.blocks_for(num_tokens)
        if self.window:
            return min(num_blocks, self.blocks_for(self.window - 1 + self._max_step_tokens) + 1)
        return num_blocks

    def check_fits(self, num_tokens: int, field: str) -> None:
        """Raises InvalidRequest, naming both numbers, if a sequence of so many cached tokens can never run."""
        if self.num_resident_blocks(num_tokens) > self.pool.num_usable:
            raise InvalidRequest(
                field,
                num_tokens,
                f"needs {self.num_resident_blocks(num_tokens)} KV blocks and the pool has {self.pool.num_usable} "
                f"({self.pool.num_usable * self.block_size} tokens); shorten the request or raise kv_cache_bytes",
            )

    # -- prefixes ---------------------------------------------------------------------------------------------------

    def find_prefix(self, request: Request) -> Prefix:
        """The longest prefix of a waiting request that is in the cache: its forked parent's, or published blocks.

        Never all of it: at least the last token is computed, so that there are logits, and that token never lies
        inside a shared block. Requests that want prompt logprobs compute the whole prompt. What a preempted request
        has in the host pool counts too: its first blocks may be shared, the rest is brought back.
        """
        parent = request.parent
        if parent is not None and parent.blocks is not None and not request.output_ids:
            forked = self._fork_of(parent, request.num_prompt_tokens)
            if forked is not None:
                return forked
        found = NO_PREFIX
        if self.enable_prefix_caching and not request.needs_prompt_logits:
            found = self._find_published(request)
        if request.swapped is not None and request.swapped.num_tokens > found.num_tokens:
            return _restored(request.swapped, found)
        return found

    def _find_published(self, request: Request) -> Prefix:
        block_ids: list[int] = []
        num_full = (request.num_tokens - 1) // self.block_size
        self._extend_keys(request, num_full)
        for key in request.block_keys[:num_full]:
            block_id = self.pool.lookup(key)
            if block_id is None:
                break
            block_ids.append(block_id)
        num_tokens = len(block_ids) * self.block_size
        num_outside = self._num_outside_window(num_tokens)
        block_ids[:num_outside] = [NULL_BLOCK] * num_outside
        return Prefix(tuple(block_ids), num_tokens)

    def _fork_of(self, parent: Request, num_prompt_tokens: int) -> Prefix | None:
        """All of the prompt but its last token.

        None if the parent has not computed that much (it was preempted), or its window has slid past what the child
        needs. Copies run before the step that they come with, so tokens in flight may be shared but not copied; asking
        for computed ones is simpler and costs one step at most.
        """
        assert parent.blocks is not None
        num_tokens = num_prompt_tokens - 1
        if parent.num_computed_tokens < num_tokens or parent.blocks.num_freed > self._num_outside_window(num_tokens):
            return None
        num_full, num_partial = divmod(num_tokens, self.block_size)
        row = self.block_tables[parent.blocks.row]
        shared = tuple(row[:num_full].tolist())
        return Prefix(shared, num_tokens, int(row[num_full]) if num_partial else None)

    def _extend_keys(self, request: Request, num_full: int) -> None:
        """Makes the request know the keys of its first `num_full` blocks."""
        keys = request.block_keys
        size = self.block_size
        if len(keys) < num_full:
            digest = keys[-1].digest if keys else root_digest(self._chain, self.chain_secret, request.extra_keys)
            for begin in range(len(keys) * size, num_full * size, size):
                content = content_of(request.token_slice(begin, begin + size))
                digest = self._chain(digest, content)
                keys.append(BlockKey(digest, content))

    # -- allocation -------------------------------------------------------------------------------------------------

    def start(self, request: Request, prefix: Prefix, num_new_tokens: int, headroom: int = 0) -> list[int] | None:
        """Gives a waiting request a row, its prefix, and blocks for `num_new_tokens` more.

        Args:
            headroom: blocks that must still be available afterwards.

        Returns:
            The new block ids, or None (and nothing changed) if there are not enough blocks or no row now.
        """
        assert request.blocks is None, f"request {request.request_id} already has blocks"
        num_new = self.blocks_for(prefix.num_tokens + num_new_tokens) - len(prefix.block_ids)
        num_needed = num_new + self.pool.num_unreferenced(prefix.block_ids)
        if not self._free_rows or num_needed + headroom > self.pool.num_available:
            return None
        self.pool.retain(prefix.block_ids)
        new_ids = self.pool.allocate(num_new)
        assert new_ids is not None
        blocks = SequenceBlocks(self._free_rows.pop())
        table = (*prefix.block_ids, *new_ids)
        self.block_tables[blocks.row, : len(table)] = table
        blocks.num_blocks = len(table)
        blocks.num_slots = len(table) * self.block_size
        blocks.num_published = len(prefix.block_ids)
        blocks.publish_at = (blocks.num_published + 1) * self.block_size
        while blocks.num_freed < len(table) and table[blocks.num_freed] == NULL_BLOCK:
            blocks.num_freed += 1
        request.blocks = blocks
        self.drop_swapped(request)
        if self.enable_prefix_caching and request.num_preemptions == 0:
            self.stats.num_prefix_queries += request.num_tokens
            self.stats.num_prefix_hits += prefix.num_tokens
        return new_ids

    def extend(self, request: Request, num_new_tokens: int) -> list[int] | None:
        """Makes room for `num_new_tokens` after those already scheduled of a running request.

        Returns:
            The new block ids (often none), or None (and no block given) if there are not enough.
        """
        blocks = request.blocks
        assert blocks is not None, f"request {request.request_id} has no blocks"
        num_tokens = request.num_scheduled_tokens + num_new_tokens
        if num_tokens <= blocks.num_slots:
            return []
        if self.window:
            self._free_outside_window(request)
        new_ids = self.pool.allocate(self.blocks_for(num_tokens) - blocks.num_blocks)
        if new_ids is None:
            return None
        end = blocks.num_blocks + len(new_ids)
        self.block_tables[blocks.row, blocks.num_blocks : end] = new_ids
        blocks.num_blocks = end
        blocks.num_slots = end * self.block_size
        return new_ids

    def num_tokens_available(self, request: Request) -> int:
        """Tokens that `extend` could make room for now."""
        blocks = request.blocks
        assert blocks is not None
        return blocks.num_slots - request.num_scheduled_tokens + self.pool.num_available * self.block_size

    def swap_out(self, request: Request) -> list[tuple[int, int]] | None:
        """Takes all blocks of a running request, to be preempted, back and reserves host blocks for their K/V.

        Returns:
            The copies (block, host block) that the next step must begin with: steps in flight write these blocks, and
            the next one may give them to others. None (and nothing changed) if the host pool has no room.
        """
        blocks = request.blocks
        assert blocks is not None, f"request {request.request_id} has no blocks"
        num_tokens, first = request.num_scheduled_tokens, blocks.num_freed
        block_ids = self.block_tables[blocks.row, first : self.blocks_for(num_tokens)].tolist()
        host_ids = self.host.allocate(len(block_ids))
        if not host_ids:
            return None
        self.free(request)
        request.swapped = SwappedBlocks(num_tokens, first, tuple(host_ids))
        return list(zip(block_ids, host_ids, strict=True))

    def drop_swapped(self, request: Request) -> None:
        """Takes the host blocks back: they have been brought back, or will never be."""
        if request.swapped is not None:
            self.host.release(request.swapped.host_ids)
            request.swapped = None

    def free(self, request: Request) -> None:
        """Takes all blocks back (finished or preempted); published ones stay findable until evicted."""
        self.drop_swapped(request)
        blocks = request.blocks
        if blocks is None:
            return
        self.pool.release(self.block_tables[blocks.row, : blocks.num_blocks][::-1])
        self._free_rows.append(blocks.row)
        request.blocks = None

    def publish(self, request: Request) -> None:
        """Offers the full blocks of computed tokens to the prefix cache.

        Tokens in flight do not count: a hit must find K/V that a step has really written.
        """
        blocks = request.blocks
        assert blocks is not None
        num_full = request.num_computed_tokens // self.block_size
        first = max(blocks.num_published, blocks.num_freed)
        if num_full > first and self.enable_prefix_caching:
            self._extend_keys(request, num_full)
            block_ids = self.block_tables[blocks.row, first:num_full].tolist()
            for block_id, key in zip(block_ids, request.block_keys[first:num_full], strict=True):
                self.pool.publish(block_id, key)
        blocks.num_published = max(blocks.num_published, num_full)
        blocks.publish_at = (blocks.num_published + 1) * self.block_size

    # -- sliding window ---------------------------------------------------------------------------------------------

    def _num_outside_window(self, position: int) -> int:
        """Leading blocks that queries at `position` and later cannot see (0 without a window)."""
        return max(0, position - self.window + 1) // self.block_size if self.window else 0

    def _free_outside_window(self, request: Request) -> None:
        blocks = request.blocks
        assert blocks is not None
        end = min(self._num_outside_window(request.num_scheduled_tokens), blocks.num_blocks)
        if end > blocks.num_freed:
            entries = self.block_tables[blocks.row, blocks.num_freed : end]
            self.pool.release(entries)
            entries[:] = NULL_BLOCK
            blocks.num_freed = end

    # -- checks -----------------------------------------------------------------------------------------------------

    def assert_writable(
        self, rows: npt.NDArray[np.int32], begins: npt.NDArray[np.int32], ends: npt.NDArray[np.int32]
    ) -> None:
        """Checks every block that a step writes: owned once, not findable. Raises AssertionError.

        Args:
            rows, begins, ends: [B] table row and half-open token range [begin, end) of each sequence.
        """
        first, last = begins // self.block_size, (ends - 1) // self.block_size
        self.pool.assert_writable(self.block_tables[rows, first])
        for index in (last > first).nonzero()[0].tolist():
            self.pool.assert_writable(self.block_tables[rows[index], first[index] + 1 : last[index] + 1])

    def waste(self, running: Iterable[Request]) -> Waste:
        """How much of what is allocated holds no token (freed window entries are not allocated)."""
        num_slots = num_unused = num_sequences = 0
        for request in running:
            if (blocks := request.blocks) is not None:
                num_slots += blocks.num_slots - blocks.num_freed * self.block_size
                num_unused += blocks.num_slots - request.num_scheduled_tokens
                num_sequences += 1
        return Waste(num_slots, num_unused, num_sequences)

    def free_rows(self) -> list[int]:
        """Rows without a sequence, the next one to be given out last."""
        return list(self._free_rows)

    def restore(self, free_rows: list[int], pool: PoolState, running: Iterable[Request]) -> None:
        """Takes over a recorded state; the running requests' tables are in place."""
        self._free_rows = list(free_rows)
        self.pool.restore(pool, self._count_references(running))

    def _count_references(self, running: Iterable[Request]) -> npt.NDArray[np.int32]:
        tables = [self.block_tables[r.blocks.row, : r.blocks.num_blocks] for r in running if r.blocks is not None]
        entries = np.concatenate([*tables, np.zeros(1, np.int32)])
        references = np.bincount(entries, minlength=self.pool.num_blocks).astype(np.int32)
        references[NULL_BLOCK] = 0
        return references

    def check_integrity(self, running: list[Request], waiting: Iterable[Request] = ()) -> None:
        """Tables, rows, both pools and requests agree. Raises AssertionError."""
        swapped = [request.swapped for request in waiting if request.swapped is not None]
        self.host.check_integrity([host_id for entry in swapped for host_id in entry.host_ids])
        rows = list(self._free_rows)
        for request in running:
            blocks = request.blocks
            assert blocks is not None, f"running request {request.request_id} has no blocks"
            assert request.swapped is None, f"running request {request.request_id} holds host blocks"
            rows.append(blocks.row)
            entries = self.block_tables[blocks.row, : blocks.num_blocks]
            assert blocks.num_slots == blocks.num_blocks * self.block_size
            assert 0 <= blocks.num_slots - request.num_scheduled_tokens < self.block_size, (
                f"request {request.request_id}: {request.num_scheduled_tokens} tokens in {blocks.num_slots} slots"
            )
            null = entries == NULL_BLOCK
            assert null[: blocks.num_freed].all() and not null[blocks.num_freed :].any(), "null entry inside the window"
            assert blocks.num_freed <= self._num_outside_window(request.num_scheduled_tokens), "freed inside the window"
        assert sorted(rows) == list(range(len(self.block_tables))), "a table row is lost or held twice"
        self.pool.check_integrity(self._count_references(running))


def _restored(swapped: SwappedBlocks, found: Prefix) -> Prefix:
    """All that was swapped out; leading blocks that the prefix cache still has are shared instead of brought back."""
    num_freed = swapped.num_freed
    shared = (NULL_BLOCK,) * num_freed + found.block_ids[num_freed:]
    return Prefix(shared, swapped.num_tokens, host_ids=swapped.host_ids[len(shared) - num_freed :])
