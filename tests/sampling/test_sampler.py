"""What the sampler promises, for numpy and for the native rows (cases C13, C18, C20)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from trtdecode.errors import ExecutorFailed, InvalidRequest
from trtdecode.executor.base import BatchResult
from trtdecode.sampling.sampler import Sampler

from .conftest import EOS, logits_of, new_request

FLAT = [0.0] * 8


def pick(sampler: Sampler, row: list[float], **fields: Any) -> int:
    return sampler.sample(BatchResult(logits_of(row)), [new_request(**fields)]).token_ids[0]


def picks(sampler: Sampler, row: list[float], count: int, **fields: Any) -> list[int]:
    """The tokens at `count` positions of one request."""
    request = new_request(**fields)
    for _ in range(count):
        request.output_ids.append(sampler.sample(BatchResult(logits_of(row)), [request]).token_ids[0])
    return request.output_ids


# Greedy and near it (C13) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 1e-38},
        {"temperature": 1e-5},
        {"temperature": 1e-3},
        {"temperature": 0.0, "top_p": 0.0},
        {"top_p": 0.0},
        {"top_p": 1e-4},
        {"top_k": 1},
        {"min_p": 1.0},
        {"temperature": 1e-2},
    ],
)
def test_degenerate_parameters_are_greedy_and_finite(sampler: Sampler, fields: dict[str, Any]) -> None:
    row = [1.0, 3.0, 2.9, -3e38, 3.0e-38]
    assert picks(sampler, row, 8, **fields) == [1] * 8
    logprob = sampler.sample(BatchResult(logits_of(row)), [new_request(logprobs=2, **fields)]).logprobs[0]
    assert logprob is not None
    assert math.isfinite(logprob.logprob)


def test_greedy_ties_go_to_the_lowest_id(sampler: Sampler) -> None:
    assert pick(sampler, [0.0, 5.0, 5.0, 5.0], temperature=0.0) == 1


def test_top_k_one_at_a_tie_is_greedy(sampler: Sampler) -> None:
    assert picks(sampler, [0.0, 5.0, 5.0], 20, top_k=1) == [1] * 20


def test_huge_temperature_is_uniform(sampler: Sampler) -> None:
    counts = np.bincount(picks(sampler, [-300.0, 0.0, 300.0], 600, temperature=1e4), minlength=3)
    assert counts.min() > 150


# Distribution ---------------------------------------------------------------------------------------------------


def test_draws_follow_the_softmax(sampler: Sampler) -> None:
    row = [math.log(p) for p in (0.5, 0.25, 0.125, 0.125)]
    counts = np.bincount(picks(sampler, row, 4000), minlength=4)
    expected = np.array([2000, 1000, 500, 500])
    assert float(((counts - expected) ** 2 / expected).sum()) < 20  # 3 degrees of freedom: p < 2e-4


def test_temperature_squares_the_odds(sampler: Sampler) -> None:
    counts = np.bincount(picks(sampler, [math.log(2.0), 0.0], 4000, temperature=0.5), minlength=2)
    assert counts[0] / counts[1] == pytest.approx(4.0, rel=0.15)


def test_top_k_keeps_exactly_k_and_the_lowest_ids_at_a_tie(sampler: Sampler) -> None:
    assert set(picks(sampler, [1.0, 2.0, 1.0, 1.0], 200, top_k=2)) == {0, 1}
    assert set(picks(sampler, FLAT, 400, top_k=3)) == {0, 1, 2}


def test_top_p_keeps_the_fewest_that_reach_it(sampler: Sampler) -> None:
    row = [math.log(p) for p in (0.1, 0.6, 0.3)]
    assert set(picks(sampler, row, 200, top_p=0.59)) == {1}
    assert set(picks(sampler, row, 200, top_p=0.61)) == {1, 2}
    assert set(picks(sampler, FLAT, 400, top_p=0.5)) == {0, 1, 2, 3}


def test_top_p_counts_within_top_k(sampler: Sampler) -> None:
    """vLLM's order: of the two that top-k leaves, 2/3 and 1/3, top-p 0.6 keeps the first."""
    row = [math.log(p) for p in (0.4, 0.2, 0.2, 0.2)]
    assert set(picks(sampler, row, 200, top_k=2, top_p=0.6)) == {0}


def test_min_p_is_relative_to_the_best(sampler: Sampler) -> None:
    row = [math.log(p) for p in (0.5, 0.26, 0.24)]
    assert set(picks(sampler, row, 300, min_p=0.5)) == {0, 1}


# Penalties (C20) ------------------------------------------------------------------------------------------------


def test_presence_and_frequency_count_the_output_only(sampler: Sampler) -> None:
    """[2.0, 1.0, 0.5, 1.1] becomes [0.75, 0.25, 0.5, 1.1]."""
    fields: dict[str, Any] = {"frequency_penalty": 0.5, "presence_penalty": 0.25, "temperature": 0.0}
    row = [2.0, 1.0, 0.5, 1.1]
    assert pick(sampler, row, prompt=[2, 2, 3], output=[0, 0, 1], **fields) == 3
    assert pick(sampler, [2.0, 1.0, 0.5, 0.76], prompt=[2, 2, 3], output=[0, 0, 1], **fields) == 3
    assert pick(sampler, [2.0, 1.0, 0.5, 0.74], prompt=[2, 2, 3], output=[0, 0, 1], **fields) == 0
    assert pick(sampler, [2.0, 0.5, 0.5, 0.5], prompt=[0, 0, 0], **fields) == 0, "nothing is generated yet"


def test_repetition_counts_prompt_and_output(sampler: Sampler) -> None:
    """1.1 / 1.2 = 0.9167 and -0.5 * 1.2 = -0.6."""
    fields: dict[str, Any] = {"repetition_penalty": 1.2, "temperature": 0.0}
    assert pick(sampler, [1.1, -0.5, 0.92], prompt=[0], output=[1], **fields) == 2
    assert pick(sampler, [1.1, -0.5, 0.91], prompt=[0], output=[1], **fields) == 0
    assert pick(sampler, [-0.5, -0.59, -9.0], prompt=[0], output=[2], **fields) == 1
    assert pick(sampler, [-0.5, -0.61, -9.0], prompt=[0], output=[2], **fields) == 0


def test_negative_frequency_raises_repeats(sampler: Sampler) -> None:
    assert pick(sampler, [1.0, 2.5], output=[0], frequency_penalty=-2.0, temperature=0.0) == 0


def test_penalties_stay_with_their_request(sampler: Sampler) -> None:
    row = [2.0, 1.5]
    plain = new_request(temperature=0.0, output=[0, 0, 0])
    penalised = new_request(temperature=0.0, output=[0, 0, 0], frequency_penalty=1.05)
    for requests in ([plain, penalised], [penalised, plain]):
        ids = sampler.sample(BatchResult(logits_of(row, row)), requests).token_ids
        assert ids == [0 if request is plain else 1 for request in requests]


def test_penalties_follow_tokens_as_they_come(sampler: Sampler) -> None:
    """Each step's state is that of a fresh request with the same tokens."""
    rng = np.random.default_rng(3)
    fields: dict[str, Any] = {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": -0.4}
    grown = new_request(prompt=[5, 5, 7], **fields)
    for _ in range(300):
        result = BatchResult(rng.normal(0, 1, (1, 400)).astype(np.float32))
        fresh = new_request(prompt=[5, 5, 7], output=grown.output_ids, **fields)
        (token,) = sampler.sample(result, [grown]).token_ids
        assert sampler.sample(result, [fresh]).token_ids == [token]
        grown.output_ids.append(token)


# Bias, bans, minimum length -------------------------------------------------------------------------------------


def test_logit_bias_adds(sampler: Sampler) -> None:
    assert pick(sampler, [1.0, 0.0, 0.0], temperature=0.0, logit_bias=((2, 1.5),)) == 2
    assert pick(sampler, [1.0, 0.0, 0.0], temperature=0.0, logit_bias=((0, -100.0),)) == 1


def test_bad_word_of_one_token_never_comes(sampler: Sampler) -> None:
    assert 1 not in picks(sampler, [0.0, 9.0, 0.0], 50, bad_word_ids=((1,),))


def test_bad_word_of_several_tokens_is_cut_at_its_last(sampler: Sampler) -> None:
    fields: dict[str, Any] = {"temperature": 0.0, "bad_word_ids": ((4, 5, 1),)}
    assert pick(sampler, [0.0, 9.0, 1.0], output=[4, 5], **fields) == 2
    assert pick(sampler, [0.0, 9.0, 1.0], output=[5], **fields) == 1
    assert pick(sampler, [0.0, 9.0, 1.0], output=[4, 5, 0], **fields) == 1
    assert pick(sampler, [0.0, 9.0, 1.0], prompt=[4, 5], **fields) == 1, "the prompt does not count"


def test_min_tokens_keeps_stop_tokens_back(sampler: Sampler) -> None:
    fields: dict[str, Any] = {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": (1,)}
    assert pick(sampler, [0.0, 8.0, 9.0], output=[0], **fields) == 0
    assert pick(sampler, [0.0, 8.0, 9.0], output=[0, 0], **fields) == EOS


# Random streams (C18) -------------------------------------------------------------------------------------------


def test_a_seeded_request_does_not_notice_its_company(sampler: Sampler) -> None:
    rng = np.random.default_rng(11)
    flat = np.zeros((9, 1000), np.float32)
    alone = picks(sampler, [0.0] * 1000, 16, temperature=0.8)
    others = [new_request(seed=index, temperature=0.7 + index, top_k=index, top_p=0.5) for index in range(8)]
    for _ in range(4):
        request = new_request(temperature=0.8)
        for _ in range(16):
            company = list(rng.permutation(np.array([*others[: rng.integers(0, 9)], request], dtype=object)))
            ids = sampler.sample(BatchResult(flat[: len(company)]), company).token_ids
            request.output_ids.append(ids[company.index(request)])
        assert request.output_ids == alone


def test_samples_and_seeds_differ(sampler: Sampler) -> None:
    flat = [0.0] * 1000
    streams = [
        picks(sampler, flat, 16, seed=seed, sample_index=index)
        for seed, index in ((1, 0), (1, 1), (2, 0), (2**64 - 1, 0))
    ]
    assert len({tuple(stream) for stream in streams}) == 4


def test_frozen_stream(sampler: Sampler) -> None:
    """Seed 42 over equal logits: changing these changes every seeded answer that a user has on file."""
    assert picks(sampler, [0.0] * 1000, 8) == [987, 825, 729, 326, 314, 225, 358, 548]


# What can be wrong with a row -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0}, {"top_k": 5}, {"frequency_penalty": 1.0}])
def test_a_row_that_is_not_finite_ends_its_request_only(sampler: Sampler, value: float, fields: dict[str, Any]) -> None:
    bad = [0.0] * 200
    bad[150] = value
    good = [0.0] * 199 + [50.0]
    requests = [new_request(**fields) for _ in range(3)]
    result = sampler.sample(BatchResult(logits_of(good, bad, good)), requests)
    assert list(result.errors) == [1]
    assert isinstance(result.errors[1], ExecutorFailed)
    assert (result.token_ids[0], result.token_ids[2]) == (199, 199)


def test_a_row_of_minus_infinity_is_an_error(sampler: Sampler) -> None:
    result = sampler.sample(BatchResult(logits_of([-math.inf] * 4)), [new_request(logprobs=1)])
    assert isinstance(result.errors[0], ExecutorFailed)
    assert result.logprobs == [None]


def test_excluding_every_token_is_the_callers_error(sampler: Sampler) -> None:
    request = new_request(bad_word_ids=((0,), (1,)), bad_words=("a", "b"))
    result = sampler.sample(BatchResult(logits_of([1.0, 2.0])), [request])
    assert isinstance(result.errors[0], InvalidRequest)
    assert "bad_words" in str(result.errors[0])


def test_tokens_at_minus_infinity_are_never_drawn(sampler: Sampler) -> None:
    row = [-math.inf, 0.0, -math.inf, 0.0]
    for fields in ({}, {"top_k": 3}, {"top_p": 0.99}, {"min_p": 0.01}, {"repetition_penalty": 2.0, "prompt": [0]}):
        assert set(picks(sampler, row, 100, **fields)) == {1, 3}


def test_rows_beyond_the_requests_are_ignored(sampler: Sampler) -> None:
    assert len(sampler.sample(BatchResult(logits_of(FLAT, [math.nan] * 8)), [new_request()]).token_ids) == 1


def test_argmax_from_the_executor_is_taken(sampler: Sampler) -> None:
    result = sampler.sample(BatchResult(None, np.array([7, 3])), [new_request(), new_request()])
    assert (result.token_ids, result.logprobs, result.errors) == ([7, 3], [None, None], {})


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({"temperature": 0.0}, False),
        ({"temperature": 0.0, "top_k": 40, "top_p": 0.9}, False),
        ({"top_k": 1}, False),
        ({}, True),
        ({"temperature": 0.0, "logprobs": 0}, True),
        ({"temperature": 0.0, "presence_penalty": 0.1}, True),
        ({"temperature": 0.0, "min_tokens": 1}, True),
        ({"temperature": 0.0, "logit_bias": ((1, 1.0),)}, True),
        ({"temperature": 0.0, "bad_word_ids": ((1,),)}, True),
    ],
)
def test_needs_logits(sampler: Sampler, fields: dict[str, Any], needed: bool) -> None:
    assert sampler.needs_logits(new_request(**fields)) is needed
