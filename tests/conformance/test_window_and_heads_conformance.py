"""CASES C40 and C42: which KV head a query head reads, and exactly which keys a sliding window shows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from conformance.driver import Driver
from conformance.tiny_graph import AttentionOnly, TinySpec
from trtdecode.executor.base import Executor

MakeExecutor = Callable[[TinySpec], Executor]

WINDOW = TinySpec(num_layers=1, sliding_window=4)
TOKENS = [17, 3, 99, 45, 8, 120, 64, 31, 2, 77, 50, 11, 90]


def test_window_of_four_sees_itself_and_three_keys(make_executor: MakeExecutor) -> None:
    """Changing one id moves the logits of its own and the next three positions, and no other (one layer)."""
    driver = Driver(make_executor(WINDOW))
    before = driver.prefill(driver.sequence(TOKENS))
    changed = TOKENS.copy()
    changed[2] = 5
    after = driver.prefill(driver.sequence(changed))
    moved = np.abs(after - before).max(axis=-1) > 1e-4
    assert moved.tolist() == [position in (2, 3, 4, 5) for position in range(13)]


def test_window_paths_agree(make_executor: MakeExecutor) -> None:
    """Whole prefill, token-by-token decode, chunks of 5 + 5 + 3, and a prefix hit."""
    driver = Driver(make_executor(WINDOW))
    tokens = TOKENS * 3  # longer than a block, so that a prefix hit exists
    whole_sequence = driver.sequence(tokens)
    whole = driver.prefill(whole_sequence)
    np.testing.assert_allclose(driver.prefill(driver.sequence(tokens), 1), whole, atol=1e-4, rtol=0)
    np.testing.assert_allclose(driver.prefill(driver.sequence(tokens), 5), whole, atol=1e-4, rtol=0)
    hit = driver.sequence(tokens, prefix=whole_sequence)
    assert hit.num_computed >= driver.executor.block_size
    cached = hit.num_computed
    np.testing.assert_allclose(driver.prefill(hit), whole[cached:], atol=1e-4, rtol=0)


def test_window_tables_may_name_a_freed_block_outside_the_window(make_executor: MakeExecutor) -> None:
    """Blocks that every window has left point to a null block; what it holds must not matter."""
    executor = make_executor(WINDOW)
    driver = Driver(executor)
    tokens = np.random.default_rng(0).integers(0, 131, 3 * executor.block_size + 2).tolist()
    sequence = driver.sequence(tokens[:-1], room=1)
    driver.prefill(sequence)
    sequence.tokens.append(tokens[-1])
    expected = driver.prefill(driver.sequence(tokens))[-1]
    other = driver.sequence(TOKENS)
    driver.prefill(other)
    sequence.blocks[0] = sequence.blocks[1] = other.blocks[0]
    np.testing.assert_allclose(driver.step((sequence, 1))[0], expected, atol=1e-4, rtol=0)


def test_query_head_h_reads_kv_head_h_over_group(make_executor: MakeExecutor) -> None:
    """V rows of KV head 0 are all 1, of head 1 all 2: six query heads attend to 1, 1, 1, 2, 2, 2."""
    random = np.random.default_rng(0)
    queries = random.standard_normal((131, 6 * 32)).astype(np.float32)
    keys = random.standard_normal((131, 2 * 32)).astype(np.float32)
    values = np.repeat(np.array([[1, 2]], np.float32), 32, axis=1).repeat(131, axis=0)
    driver = Driver(make_executor(AttentionOnly(tables=(queries, keys, values))))
    heads = driver.prefill(driver.sequence(TOKENS)).reshape(13, 6, 32)
    expected = np.array([1, 1, 1, 2, 2, 2], np.float32)[None, :, None]
    np.testing.assert_allclose(heads, np.broadcast_to(expected, heads.shape), atol=1e-5)
