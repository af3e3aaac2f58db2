"""The native rows against the numpy reference: token for token, bit for bit, on rows made to tell them apart."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from trtdecode.request import Request
from trtdecode.sampling.native_rows import NativeRows, kernel_names
from trtdecode.sampling.philox import uniform
from trtdecode.sampling.rows import NumpyRows
from trtdecode.sampling.state import SamplerState

from .conftest import new_request, rows_of

Rng = np.random.Generator
Row = npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=kernel_names() or ["not built"])
def native(request: pytest.FixtureRequest) -> NativeRows:
    """For each instruction set that this CPU has."""
    rows_of("native")
    return NativeRows(2, request.param)


def gaussian(rng: Rng, size: int) -> Row:
    return rng.normal(0, rng.choice([0.01, 1, 3, 10]), size).astype(np.float32)


def peaked(rng: Rng, size: int) -> Row:
    row = gaussian(rng, size)
    row[rng.integers(0, size, 5)] += 12
    return row


def tied(rng: Rng, size: int) -> Row:
    """Few distinct values: every cut of top-k, top-p and min-p falls among equals."""
    return rng.integers(-3, 4, size).astype(np.float32)


def nearly_tied(rng: Rng, size: int) -> Row:
    """Neighbouring floats, which one rounding too many would confuse."""
    base = np.float32(rng.choice([0.1, 7.3, -20.0]))
    row = np.full(size, base, np.float32)
    return (row.view(np.int32) + rng.integers(-3, 4, size, dtype=np.int32)).view(np.float32)


def flat(_rng: Rng, size: int) -> Row:
    return np.zeros(size, np.float32)


def signed_zeros(rng: Rng, size: int) -> Row:
    return np.where(rng.random(size) < 0.5, np.float32(0.0), np.float32(-0.0)).astype(np.float32)


def with_holes(rng: Rng, size: int) -> Row:
    row = gaussian(rng, size)
    row[rng.random(size) < 0.95] = -np.inf
    row[rng.integers(0, size)] = 0.0
    return row


def steps_at_the_edge(rng: Rng, size: int) -> Row:
    """Around x = -22.18, where the weight rounds from 1 to 0, and around the clamp at -23."""
    row = rng.choice(np.float32([-22.0, -22.18, -22.181, -22.8, -23.0, -23.1, -60.0]), size)
    row[rng.integers(0, size)] = 0.0
    return row


def extreme(rng: Rng, size: int) -> Row:
    return rng.choice(np.float32([3e38, -3e38, 1e-45, -1e-45, 0.0, 88.0]), size)


SHAPES: list[Callable[[Rng, int], Row]] = [
    gaussian, peaked, tied, nearly_tied, flat, signed_zeros, with_holes, steps_at_the_edge, extreme,
]  # fmt: skip


def random_fields(rng: random.Random, size: int) -> dict[str, Any]:
    """Every stage on or off, each with ordinary and with extreme values."""
    return {
        "temperature": rng.choice([0.0, 0.0011, 0.3, 0.8, 1.0, 1.7, 50.0]),
        "top_k": rng.choice([0, 0, 1, 2, 5, 50, size // 2, size - 1, size, size + 9]),
        "top_p": rng.choice([1.0, 1.0, 0.0, 1e-4, 0.3, 0.5, 0.9, 0.95, 0.999999, 1 - 2**-53]),
        "min_p": rng.choice([0.0, 0.0, 1e-6, 0.05, 0.5, 1.0]),
        "repetition_penalty": rng.choice([1.0, 1.0, 1.3, 0.7]),
        "presence_penalty": rng.choice([0.0, 0.5, -2.0]),
        "frequency_penalty": rng.choice([0.0, 0.3, -0.1]),
        "seed": rng.getrandbits(64),
        "sample_index": rng.randrange(4),
        "prompt": [rng.randrange(size) for _ in range(rng.choice([1, 40]))],
        "output": [rng.randrange(size) for _ in range(rng.choice([0, 1, 30]))],
        "bad_word_ids": rng.choice([(), ((rng.randrange(size),),)]),
        "min_tokens": rng.choice([0, 0, 50]),
        "logit_bias": rng.choice([(), ((rng.randrange(size), 4.5),)]),
    }


class Mask:
    """A guide with a fixed mask."""

    is_complete = False
    error = None

    def __init__(self, mask: npt.NDArray[np.uint32]) -> None:
        self.mask = mask


def random_guide(rng: Rng, size: int) -> Mask | None:
    kind = rng.integers(0, 4)
    if kind:
        return None
    words = rng.integers(0, 2**32, (size + 31) // 32, dtype=np.uint32)
    words[rng.random(len(words)) < rng.choice([0.2, 0.99])] = 0
    return Mask(words)


def states_of(requests: list[Request], size: int) -> list[SamplerState]:
    return [SamplerState(request, frozenset({size - 1})) for request in requests]


@pytest.mark.parametrize("size", [1, 7, 64, 65, 1000, 4097])
@pytest.mark.parametrize("make", SHAPES)
def test_same_tokens(native: NativeRows, make: Callable[[Rng, int], Row], size: int) -> None:
    rng, plain_rng = np.random.default_rng(size), random.Random(size)
    for _ in range(12):
        logits = np.stack([make(rng, size) for _ in range(8)])
        requests = [new_request(guide=random_guide(rng, size), **random_fields(plain_rng, size)) for _ in range(8)]
        expected = NumpyRows().choose(logits, requests, states_of(requests, size))
        found = native.choose(logits, requests, states_of(requests, size))
        assert found == expected, [requests[row].params for row in range(8) if found[row] != expected[row]]


@pytest.mark.slow
@pytest.mark.parametrize("make", SHAPES)
def test_same_tokens_at_full_size(native: NativeRows, make: Callable[[Rng, int], Row]) -> None:
    size = 49152
    rng, plain_rng = np.random.default_rng(1), random.Random(1)
    for _ in range(15):
        logits = np.stack([make(rng, size) for _ in range(4)])
        requests = [new_request(guide=random_guide(rng, size), **random_fields(plain_rng, size)) for _ in range(4)]
        expected = NumpyRows().choose(logits, requests, states_of(requests, size))
        assert native.choose(logits, requests, states_of(requests, size)) == expected


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0, 20.0])
def test_a_nucleus_of_any_width(native: NativeRows, temperature: float) -> None:
    """From one token to nearly all, so that the search for its lower end takes no, one and several rounds."""
    size = 20_000
    logits = np.random.default_rng(6).normal(0, 3, (24, size)).astype(np.float32)
    shares = [1e-6, 0.1, 0.5, 0.9, 0.99, 0.999999]
    requests = [new_request(seed=row, temperature=temperature, top_p=shares[row % 6]) for row in range(24)]
    expected = NumpyRows().choose(logits, requests, states_of(requests, size))
    assert native.choose(logits, requests, states_of(requests, size)) == expected
    assert len(set(expected)) > 12


@pytest.mark.parametrize("count", [1, 70, 80, 300, 2000, 19_990])
def test_any_number_of_leading_tokens(native: NativeRows, count: int) -> None:
    """Around the border (size / 64 / 4) of two ways to find them; the last rows mislead the second one's sample."""
    size = 20_000
    logits = np.random.default_rng(7).normal(0, 3, (12, size)).astype(np.float32)
    logits[8:, ::9] += 20  # the stride of the sample
    fields = [{"top_p": share, "min_p": least} for share in (1.0, 0.8) for least in (0.0, 0.01)]
    requests = [new_request(seed=row, temperature=2.5, top_k=count, **fields[row % 4]) for row in range(12)]
    expected = NumpyRows().choose(logits, requests, states_of(requests, size))
    assert native.choose(logits, requests, states_of(requests, size)) == expected


def test_kernels_that_this_cpu_lacks_are_refused() -> None:
    rows_of("native")
    with pytest.raises(ValueError, match="no kernels 'avx1024' that this CPU can run"):
        NativeRows(1, "avx1024")


@pytest.mark.parametrize("make", SHAPES)
def test_same_logprobs_to_the_last_bit(native: NativeRows, make: Callable[[Rng, int], Row]) -> None:
    rng = np.random.default_rng(9)
    for size in (1, 5, 64, 300, 5000):
        logits = np.stack([make(rng, size) for _ in range(6)])
        ids = [int(rng.choice(np.flatnonzero(row > -np.inf))) for row in logits]
        for num_top in (0, 1, 5, 20):
            rows = list(range(6))
            assert native.logprobs(logits, rows, ids, num_top) == NumpyRows().logprobs(logits, rows, ids, num_top)


def test_same_draws(native: NativeRows) -> None:
    """Over equal logits the token is the draw: 2**20 of them show its first 20 bits."""
    size = 2**20
    logits = np.zeros((1, size), np.float32)
    for seed, index, position in [(0, 0, 1), (2**64 - 1, 3, 77), (1234567890123456789, 0, 4000)]:
        request = new_request(seed=seed, sample_index=index, output=[0] * (position - 1))
        (token,) = native.choose(logits, [request], states_of([request], size))
        assert token == int(uniform(seed, index, position) * size)


def test_rows_that_are_not_finite(native: NativeRows) -> None:
    for size in (1, 64, 100):
        for value in (np.nan, np.inf):
            for place in {0, size // 2, size - 1}:
                logits = np.zeros((1, size), np.float32)
                logits[0, place] = value
                request = new_request(prompt=[0], output=[0], frequency_penalty=1.0)
                expected = NumpyRows().choose(logits, [request], states_of([request], size))
                assert expected == [-2] == native.choose(logits, [request], states_of([request], size))


def test_any_memory_layout(native: NativeRows) -> None:
    logits = np.asfortranarray(np.random.default_rng(2).normal(0, 1, (3, 100)).astype(np.float32))
    requests = [new_request() for _ in range(3)]
    expected = NumpyRows().choose(logits, requests, states_of(requests, 100))
    assert native.choose(logits, requests, states_of(requests, 100)) == expected


def test_ids_beyond_the_vocabulary_are_refused_not_written(native: NativeRows) -> None:
    request = new_request(prompt=[100], repetition_penalty=2.0)
    with pytest.raises(IndexError, match="seen: token id 100 is not below the vocabulary size 100"):
        native.choose(np.zeros((1, 100), np.float32), [request], states_of([request], 100))


def test_number_of_threads_does_not_matter() -> None:
    rows_of("native")
    rng = np.random.default_rng(4)
    logits = rng.normal(0, 2, (33, 3000)).astype(np.float32)
    requests = [new_request(seed=seed, top_p=0.9) for seed in range(33)]
    results = [NativeRows(threads).choose(logits, requests, states_of(requests, 3000)) for threads in (1, 2, 5)]
    assert results[0] == results[1] == results[2]
