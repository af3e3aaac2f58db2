"""What every executor must do, compared with a numpy decoder that knows no cache, blocks or batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conformance.driver import Driver
from conformance.numpy_reference import NumpyDecoder
from conformance.tiny_graph import TinySpec
from trtdecode.executor.base import Executor

MakeExecutor = Callable[[TinySpec], Executor]
Reference = Callable[[TinySpec], NumpyDecoder]

LLAMA = TinySpec()
#: float32 against float64; logits of these decoders span about 20.
ATOL = 1e-4


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, LLAMA.vocab_size, length).tolist()


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(LLAMA, id="grouped-query"),
        pytest.param(TinySpec(num_heads=4, num_kv_heads=4), id="multi-head"),
        pytest.param(TinySpec(num_heads=4, num_kv_heads=1), id="multi-query"),
        pytest.param(TinySpec(head_dim=64), id="head-dim-64"),
        pytest.param(TinySpec(sliding_window=4), id="window-4"),
        pytest.param(TinySpec(softcap=3.0), id="softcap"),
        pytest.param(TinySpec(alibi_slopes=(0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625)), id="alibi"),
    ],
)
def test_prefill_and_decode_give_the_reference_logits(
    make_executor: MakeExecutor, reference: Reference, spec: TinySpec
) -> None:
    driver = Driver(make_executor(spec))
    tokens = prompt(83)
    sequence = driver.sequence(tokens[:70], room=13)
    rows = [driver.prefill(sequence)]
    for token in tokens[70:]:
        sequence.tokens.append(token)
        rows.append(driver.step((sequence, 1)))
    np.testing.assert_allclose(np.concatenate(rows), reference(spec).logits(tokens), atol=ATOL, rtol=0)


def test_ragged_prefill_gives_each_sequence_its_own_logits(make_executor: MakeExecutor, reference: Reference) -> None:
    driver = Driver(make_executor(LLAMA))
    prompts = [prompt(length) for length in (1, 33, 5, 64, 17)]
    logits = driver.step(*((driver.sequence(tokens), len(tokens)) for tokens in prompts))
    expected = np.stack([reference(LLAMA).logits(tokens)[-1] for tokens in prompts])
    np.testing.assert_allclose(logits, expected, atol=ATOL, rtol=0)


def test_one_batch_mixes_prefill_chunks_and_decodes(make_executor: MakeExecutor, reference: Reference) -> None:
    driver = Driver(make_executor(LLAMA))
    decoding, chunked, fresh = (driver.sequence(prompt(length), room=4) for length in (20, 50, 7))
    driver.step((decoding, 19), (chunked, 21))
    logits = driver.step((decoding, 1), (chunked, 29), (fresh, 7))
    expected = np.stack([reference(LLAMA).logits(seq.tokens)[-1] for seq in (decoding, chunked, fresh)])
    np.testing.assert_allclose(logits, expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("chunk", [1, 7, 16, 32, 33])
def test_chunked_prefill_equals_whole(make_executor: MakeExecutor, chunk: int) -> None:
    driver = Driver(make_executor(LLAMA))
    tokens = prompt(75)
    whole = driver.prefill(driver.sequence(tokens))
    np.testing.assert_allclose(driver.prefill(driver.sequence(tokens), chunk), whole, atol=ATOL, rtol=0)


def test_block_tables_may_come_in_any_order(make_executor: MakeExecutor) -> None:
    executor = make_executor(LLAMA)
    tokens = prompt(200)
    ordered = Driver(executor).prefill(Driver(executor).sequence(tokens), chunk=50)
    shuffled = np.random.default_rng(3).permutation(np.arange(1, executor.num_blocks)).tolist()
    driver = Driver(executor, shuffled)
    np.testing.assert_allclose(driver.prefill(driver.sequence(tokens), chunk=50), ordered, atol=ATOL, rtol=0)


def test_the_last_block_of_the_pool_works(make_executor: MakeExecutor, reference: Reference) -> None:
    executor = make_executor(LLAMA)
    driver = Driver(executor, [executor.num_blocks - 1, 1])
    tokens = prompt(executor.block_size + 3)
    logits = driver.prefill(driver.sequence(tokens))
    np.testing.assert_allclose(logits, reference(LLAMA).logits(tokens), atol=ATOL, rtol=0)


def test_shared_prefix_blocks_are_read_and_not_written(make_executor: MakeExecutor, reference: Reference) -> None:
    executor = make_executor(LLAMA)
    driver = Driver(executor)
    prefix = prompt(2 * executor.block_size)
    first = driver.sequence(prefix + prompt(5, seed=1), room=1)
    driver.prefill(first)
    second = driver.sequence(prefix + prompt(9, seed=2), prefix=first)
    assert second.blocks[:2] == first.blocks[:2] and second.num_computed == len(prefix)
    logits = driver.prefill(second)
    np.testing.assert_allclose(logits, reference(LLAMA).logits(second.tokens)[len(prefix) :], atol=ATOL, rtol=0)
    first.tokens.append(7)
    again = driver.step((first, 1))
    np.testing.assert_allclose(again[0], reference(LLAMA).logits(first.tokens)[-1], atol=ATOL, rtol=0)


def test_block_copies_happen_in_order_before_the_step(make_executor: MakeExecutor, reference: Reference) -> None:
    executor = make_executor(LLAMA)
    driver = Driver(executor)
    original = driver.sequence(prompt(executor.block_size + 4), room=8)
    driver.prefill(original)
    fork = driver.sequence([], room=executor.block_size + 12)
    fork.tokens, fork.num_computed = [*original.tokens, 3], original.num_computed
    spare = driver.sequence([], room=1).blocks[0]
    batch = driver.batch((fork, 1))
    first_copy, *other_copies = zip(original.blocks, fork.blocks, strict=True)
    batch.block_copies = [(first_copy[0], spare), (spare, first_copy[1]), *other_copies]  # a chain: order matters
    logits = executor.execute(batch).logits
    assert logits is not None
    np.testing.assert_allclose(logits[0], reference(LLAMA).logits(fork.tokens)[-1], atol=ATOL, rtol=0)
    original.tokens.append(9)
    after = driver.step((original, 1))
    np.testing.assert_allclose(after[0], reference(LLAMA).logits(original.tokens)[-1], atol=ATOL, rtol=0)


def test_only_wanted_rows_come_back_in_the_asked_order(make_executor: MakeExecutor, reference: Reference) -> None:
    driver = Driver(make_executor(LLAMA))
    tokens = prompt(20)
    batch = driver.batch((driver.sequence(tokens), 20))
    batch.logit_indices = np.array([19, 0, 7], np.int64)
    logits = driver.executor.execute(batch).logits
    assert logits is not None and logits.dtype == np.float32
    np.testing.assert_allclose(logits, reference(LLAMA).logits(tokens)[[19, 0, 7]], atol=ATOL, rtol=0)


def test_a_step_without_wanted_rows_still_fills_the_cache(make_executor: MakeExecutor, reference: Reference) -> None:
    driver = Driver(make_executor(LLAMA))
    sequence = driver.sequence(prompt(40))
    batch = driver.batch((sequence, 24))
    batch.logit_indices = np.zeros(0, np.int64)
    logits = driver.executor.execute(batch).logits
    assert logits is not None and logits.shape == (0, LLAMA.vocab_size)
    sequence.num_computed = 24
    rest = driver.prefill(sequence)
    np.testing.assert_allclose(rest, reference(LLAMA).logits(sequence.tokens)[24:], atol=ATOL, rtol=0)


def test_argmax_only_gives_the_argmax_of_the_logits(make_executor: MakeExecutor) -> None:
    driver = Driver(make_executor(LLAMA))
    prompts = [prompt(length) for length in (3, 30, 61)]
    logits = driver.step(*((driver.sequence(tokens), len(tokens)) for tokens in prompts))
    work = [(driver.sequence(tokens), len(tokens)) for tokens in prompts]
    chosen = driver.step(*work, argmax_only=True)
    assert chosen.dtype == np.int64
    assert chosen.tolist() == logits.argmax(axis=-1).tolist()


def test_the_lowest_id_wins_a_tie(make_executor: MakeExecutor) -> None:
    driver = Driver(make_executor(TinySpec(zero_head=True)))
    chosen = driver.step(*((driver.sequence(prompt(length)), length) for length in (3, 30)), argmax_only=True)
    assert chosen.tolist() == [0, 0]


def test_alone_equals_in_a_batch_of_others_token_for_token(make_executor: MakeExecutor, reference: Reference) -> None:
    driver = Driver(make_executor(LLAMA))
    prompts = [prompt(int(length), seed=9) for length in np.random.default_rng(5).integers(1, 60, 33)]
    together = driver.greedy([driver.sequence(tokens, room=12) for tokens in prompts], 12)
    for tokens, expected in list(zip(prompts, together, strict=True))[::4]:
        sequence = driver.sequence(tokens, room=12)
        assert driver.greedy([sequence], 12) == [expected]
        driver.release(sequence)
    assert together[0] == reference(LLAMA).greedy(prompts[0], 12)


def test_old_contents_of_a_block_do_not_matter(make_executor: MakeExecutor, reference: Reference) -> None:
    driver = Driver(make_executor(LLAMA), block_order=[2, 3])
    first = driver.sequence(prompt(driver.executor.block_size * 2, seed=4))
    driver.prefill(first)
    driver.release(first)
    tokens = prompt(5)
    logits = driver.prefill(driver.sequence(tokens))
    np.testing.assert_allclose(logits, reference(LLAMA).logits(tokens), atol=ATOL, rtol=0)
