"""The pool of KV blocks: reference counts, the prefix cache's index, and which block is given out next.

A block is in exactly one of four places:

    null         block 0: never given out, never read unmasked; freed window entries point to it
    referenced   ref_count >= 1: in that many block tables; may have a key (then it is full and read-only)
    cached       ref_count == 0 with a key: keeps its content for a later hit, evicted least recently used first
    free         ref_count == 0 without a key: given out before any cached block is evicted

Ref counts are a numpy array because a finished sequence releases hundreds of blocks at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trtdecode.kv_cache.block_hash import BlockKey

NULL_BLOCK = 0

BlockIds = npt.NDArray[np.int32]


class PoolState(NamedTuple):
    """What the pool's next answers depend on, besides reference counts (the block tables tell those)."""

    free: list[int]
    cached: list[int]  # least recently used first
    keys: list[BlockKey | None]  # by block id


class BlockPool:
    """Hands out block ids; knows nothing of requests. One thread.

    Args:
        num_blocks: blocks the executor owns, the null block included; at least 2.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks: got {num_blocks}; must be at least 2 (block 0 is the null block)")
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self._ref_counts = np.zeros(num_blocks, np.int32)
        self._has_key = np.zeros(num_blocks, np.bool_)
        self._keys: list[BlockKey | None] = [None] * num_blocks
        self._by_digest: dict[bytes, int] = {}
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))  # a stack: lowest ids first
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def num_usable(self) -> int:
        """Blocks that sequences can have: all but the null block."""
        return self.num_blocks - 1

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give now, evicting cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Unreferenced blocks kept for a hit."""
        return len(self._cached)

    def cached_blocks(self) -> list[int]:
        """Ids of the unreferenced blocks kept for a hit, least recently used first."""
        return list(self._cached)

    def ref_count(self, block_id: int) -> int:
        return int(self._ref_counts[block_id])

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with ref_count 1 and no key, or None (and nothing changed) if there are not so many."""
        if count > self.num_available:
            return None
        num_free = min(count, len(self._free))
        block_ids = self._free[len(self._free) - num_free :][::-1]
        del self._free[len(self._free) - num_free :]
        while len(block_ids) < count:
            block_ids.append(self._evict())
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        key = self._keys[block_id]
        assert key is not None
        del self._by_digest[key.digest]
        self._keys[block_id] = None
        self._has_key[block_id] = False
        self.num_evictions += 1
        return block_id

    def retain(self, block_ids: Sequence[int]) -> None:
        """One more reference to each; a cached block leaves the eviction order."""
        for block_id in block_ids:
            if block_id != NULL_BLOCK:
                self._cached.pop(block_id, None)
                self._ref_counts[block_id] += 1

    def release(self, block_ids: BlockIds) -> None:
        """One reference less to each. Ids are distinct except for null entries, which are skipped.

        Blocks that nobody references any more become evictable in the order given: pass a sequence's table reversed,
        so that its tail goes before its head.
        """
        block_ids = block_ids[block_ids != NULL_BLOCK]
        self._ref_counts[block_ids] -= 1
        unreferenced = block_ids[self._ref_counts[block_ids] == 0]
        keyed = self._has_key[unreferenced]
        self._free.extend(unreferenced[~keyed].tolist())
        self._cached.update(dict.fromkeys(unreferenced[keyed].tolist()))

    def publish(self, block_id: int, key: BlockKey) -> bool:
        """Makes a full, referenced block findable. False if another block already is the one for this key."""
        assert self._ref_counts[block_id] > 0 and not self._has_key[block_id], f"block {block_id} cannot be published"
        if key.digest in self._by_digest:
            return False
        self._by_digest[key.digest] = block_id
        self._keys[block_id] = key
        self._has_key[block_id] = True
        return True

    def lookup(self, key: BlockKey) -> int | None:
        """The block holding this prefix's last block of tokens, compared token by token, or None."""
        block_id = self._by_digest.get(key.digest)
        if block_id is None or self._keys[block_id] != key:
            return None
        return block_id

    def num_unreferenced(self, block_ids: Sequence[int]) -> int:
        """How many of these are cached only: retaining them lowers `num_available` by as many."""
        return sum(block_id in self._cached for block_id in block_ids)

    def forget(self) -> None:
        """Nothing can be found any more: the content of all blocks is gone."""
        self._free.extend(self._cached)
        self._cached.clear()
        self._by_digest.clear()
        self._keys = [None] * self.num_blocks
        self._has_key[:] = False

    def state(self) -> PoolState:
        """A copy, for the flight recorder."""
        return PoolState(list(self._free), list(self._cached), list(self._keys))

    def restore(self, state: PoolState, ref_counts: BlockIds) -> None:
        """Takes over a copied state; `ref_counts` [num_blocks] are the references of all block tables."""
        self._free, self._keys = list(state.free), list(state.keys)
        self._cached = OrderedDict.fromkeys(state.cached)
        self._has_key[:] = [key is not None for key in self._keys]
        self._by_digest = {key.digest: block_id for block_id, key in enumerate(self._keys) if key is not None}
        self._ref_counts[:] = ref_counts
        self._ref_counts[NULL_BLOCK] = 0

    def assert_writable(self, block_ids: BlockIds) -> None:
        """A step may write only blocks that exactly one sequence has and that no hit can find."""
        bad = (self._ref_counts[block_ids] != 1) | self._has_key[block_ids]
        if bad.any():
            block_id = int(block_ids[bad][0])
            raise AssertionError(
                f"block {block_id} would be written with ref_count {self._ref_counts[block_id]} and key "
                f"{self._keys[block_id]}"
            )

    def check_integrity(self, expected_ref_counts: BlockIds) -> None:
        """Every invariant above, given the references that all block tables hold ([num_blocks]; null ignored).

        Raises:
            AssertionError: naming the first block that is wrong.
        """
        differs = self._ref_counts != expected_ref_counts
        differs[NULL_BLOCK] = self._ref_counts[NULL_BLOCK] != 0
        assert not differs.any(), (
            f"block {int(differs.argmax())}: ref_count {self._ref_counts[differs.argmax()]}, "
            f"but {expected_ref_counts[differs.argmax()]} tables hold it"
        )
        unreferenced = (self._ref_counts == 0).nonzero()[0].tolist()
        places = [NULL_BLOCK, *self._free, *self._cached]
        assert sorted(places) == unreferenced, "an unreferenced block is lost or listed twice"
        for block_id in self._free:
            assert not self._has_key[block_id], f"free block {block_id} has a key"
        for block_id in self._cached:
            assert self._has_key[block_id], f"cached block {block_id} has no key"
        assert len(self._by_digest) == int(self._has_key.sum()), "the index and the keys differ in number"
        for digest, block_id in self._by_digest.items():
            key = self._keys[block_id]
            assert key is not None and key.digest == digest, f"block {block_id} is indexed under another's digest"
