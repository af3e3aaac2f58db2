"""Exact block ids, eviction order, and 10,000 random operations against a model of plain sets."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from trtdecode.kv_cache.block_hash import BlockKey
from trtdecode.kv_cache.block_pool import NULL_BLOCK, BlockPool


def key(name: str) -> BlockKey:
    return BlockKey(name.encode(), b"content of " + name.encode())


def ids(*block_ids: int) -> np.ndarray:
    return np.array(block_ids, np.int32)


def check(pool: BlockPool, *tables: list[int]) -> None:
    references = np.zeros(pool.num_blocks, np.int32)
    for table in tables:
        np.add.at(references, table, 1)
    pool.check_integrity(references)


def test_blocks_come_in_order_and_block_0_never() -> None:
    pool = BlockPool(6)
    assert pool.num_usable == pool.num_available == 5
    assert pool.allocate(2) == [1, 2]
    assert pool.allocate(3) == [3, 4, 5]
    assert pool.allocate(0) == []
    check(pool, [1, 2, 3, 4, 5])


def test_too_many_is_none_and_changes_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(2) == [1, 2]
    assert pool.allocate(2) is None
    assert pool.num_available == 1
    assert pool.allocate(1) == [3]


def test_released_blocks_without_a_key_are_given_out_first() -> None:
    pool = BlockPool(6)
    pool.allocate(3)
    pool.publish(1, key("a"))
    pool.release(ids(3, 2, 1))
    assert (pool.num_available, pool.num_cached) == (5, 1)
    assert pool.allocate(4) == [2, 3, 4, 5]  # a stack: last released first; the cached block is not among them
    assert pool.lookup(key("a")) == 1
    assert pool.allocate(1) == [1]
    assert pool.lookup(key("a")) is None
    assert pool.num_evictions == 1


def test_eviction_takes_the_least_recently_released_and_a_hit_rescues() -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    for block_id, name in ((1, "head"), (2, "middle"), (3, "tail")):
        pool.publish(block_id, key(name))
    pool.release(ids(3, 2, 1))  # a table reversed: its tail is evicted before its head
    pool.retain([3])
    pool.release(ids(3))  # the tail was used again: now it is the most recent
    assert [pool.allocate(1) for _ in range(3)] == [[2], [1], [3]]


def test_a_shared_block_stays_until_its_last_user_leaves() -> None:
    pool = BlockPool(4)
    pool.allocate(1)
    pool.publish(1, key("a"))
    pool.retain([1])
    pool.release(ids(1))
    assert (pool.ref_count(1), pool.num_cached) == (1, 0)
    check(pool, [1])
    pool.release(ids(1))
    assert (pool.ref_count(1), pool.num_cached) == (0, 1)
    check(pool)


def test_the_first_block_of_a_content_is_the_one_that_is_found() -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    assert pool.publish(1, key("a")) is True
    assert pool.publish(2, key("a")) is False
    assert pool.lookup(key("a")) == 1
    pool.release(ids(2))
    assert pool.num_cached == 0  # block 2 has no key
    check(pool, [1])


def test_a_match_of_digests_with_other_tokens_is_no_hit() -> None:
    pool = BlockPool(4)
    pool.allocate(1)
    pool.publish(1, BlockKey(b"same", b"these tokens"))
    assert pool.lookup(BlockKey(b"same", b"other tokens")) is None
    assert pool.lookup(BlockKey(b"same", b"these tokens")) == 1


def test_null_entries_are_neither_retained_nor_released() -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    pool.retain([NULL_BLOCK, 2])
    pool.release(ids(NULL_BLOCK, NULL_BLOCK, 1, 2))
    assert (pool.ref_count(NULL_BLOCK), pool.ref_count(1), pool.ref_count(2)) == (0, 0, 1)
    check(pool, [2])


def test_shared_and_findable_blocks_are_not_writable() -> None:
    pool = BlockPool(5)
    pool.allocate(3)
    pool.assert_writable(ids(1, 2, 3))
    pool.publish(1, key("a"))
    with pytest.raises(AssertionError, match="block 1 would be written with ref_count 1 and key"):
        pool.assert_writable(ids(2, 1))
    pool.retain([2])
    with pytest.raises(AssertionError, match="block 2 would be written with ref_count 2"):
        pool.assert_writable(ids(3, 2))
    with pytest.raises(AssertionError, match="block 4 would be written with ref_count 0"):
        pool.assert_writable(ids(4))


def test_a_pool_needs_one_block_besides_the_null_block() -> None:
    with pytest.raises(ValueError, match="num_blocks: got 1; must be at least 2"):
        BlockPool(1)


def test_state_comes_back() -> None:
    pool = BlockPool(6)
    pool.allocate(4)
    pool.publish(1, key("a"))
    pool.publish(2, key("b"))
    pool.release(ids(1, 3))
    other = BlockPool(6)
    other.restore(pool.state(), np.array([0, 0, 1, 0, 1, 0], np.int32))
    check(other, [2, 4])
    assert (other.lookup(key("a")), other.lookup(key("b"))) == (1, 2)
    assert [other.allocate(1) for _ in range(4)] == [pool.allocate(1) for _ in range(4)]


@pytest.mark.parametrize("damage", ["ref_count", "lost", "twice", "unindexed"])
def test_check_integrity_sees_damage(damage: str) -> None:
    pool = BlockPool(5)
    pool.allocate(2)
    pool.publish(1, key("a"))
    check(pool, [1, 2])
    if damage == "ref_count":
        pool._ref_counts[2] += 1
    elif damage == "lost":
        pool._free.pop()
    elif damage == "twice":
        pool._free.append(pool._free[0])
    else:
        pool._by_digest.clear()
    with pytest.raises(AssertionError):
        check(pool, [1, 2])


@pytest.mark.parametrize("seed", range(10))
def test_random_operations(seed: int) -> None:
    """Tables allocate, share, publish and go, in random order; a plain model says what must be there."""
    rng = random.Random(seed)
    pool = BlockPool(rng.randint(2, 40))
    tables: list[list[int]] = []
    published: dict[str, int] = {}  # name -> block, as long as it was not given out again
    for step in range(1000):
        action = rng.randrange(4)
        if action == 0:
            count = rng.randint(0, 8)
            available = pool.num_available
            got = pool.allocate(count)
            assert (got is None) == (count > available)
            if got is not None:
                assert len(set(got)) == count and NULL_BLOCK not in got
                assert not set(got) & {block for table in tables for block in table}, "a block in use was given out"
                published = {name: block for name, block in published.items() if block not in got}
                tables.append(got)
        elif action == 1 and tables:
            table = tables.pop(rng.randrange(len(tables)))
            pool.release(ids(*table[::-1]))
        elif action == 2 and tables:
            table = rng.choice(tables)
            references = Counter(block for other in tables for block in other)
            owned = [block for block in table if references[block] == 1 and block not in published.values()]
            if owned:
                block, name = rng.choice(owned), f"{step}"
                assert pool.publish(block, key(name))
                published[name] = block
        elif action == 3 and published:
            names = rng.sample(sorted(published), rng.randint(1, min(4, len(published))))
            found = [pool.lookup(key(name)) for name in names]
            assert found == [published[name] for name in names]
            pool.retain([block for block in found if block is not None])
            tables.append([published[name] for name in names])
        check(pool, *tables)
        used = {block for table in tables for block in table}
        assert pool.num_available == pool.num_usable - len(used)
