"""Log-probabilities: values against float64, ranks, and which distribution they are of (cases C13 and C21)."""

from __future__ import annotations

import numpy as np
import pytest
from trtdecode.executor.base import BatchResult
from trtdecode.sampling.sampler import Sampler

from .conftest import logits_of, new_request


def log_softmax(row: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    shifted = row.astype(np.float64) - row.max()
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum())  # type: ignore[type-arg]
    return result


def test_chosen_and_best(sampler: Sampler) -> None:
    row = [1.0, 4.0, 3.0, 2.0]
    result = sampler.sample(BatchResult(logits_of(row)), [new_request(temperature=0.0, logprobs=2)])
    (logprob,) = result.logprobs
    assert logprob is not None
    expected = log_softmax(np.array(row))
    assert (logprob.token_id, logprob.rank) == (1, 1)
    assert logprob.logprob == pytest.approx(expected[1], abs=1e-6)
    assert [token for token, _ in logprob.top] == [1, 2]
    assert [value for _, value in logprob.top] == pytest.approx([expected[1], expected[2]], abs=1e-6)


def test_only_requests_that_ask_get_any(sampler: Sampler) -> None:
    requests = [new_request(temperature=0.0, logprobs=count) for count in (None, 0, 3)]
    result = sampler.sample(BatchResult(logits_of([1.0, 2.0], [1.0, 2.0], [1.0, 2.0])), requests)
    assert [None if entry is None else len(entry.top) for entry in result.logprobs] == [None, 0, 2]


def test_they_are_the_models_own(sampler: Sampler) -> None:
    """Bias, penalties and temperature decide what is chosen, not what the model thought of it."""
    request = new_request(temperature=0.0, logprobs=1, logit_bias=((0, 50.0),), output=[1], frequency_penalty=2.0)
    (logprob,) = sampler.sample(BatchResult(logits_of([1.0, 4.0, 3.0])), [request]).logprobs
    assert logprob is not None
    assert (logprob.token_id, logprob.rank, logprob.top[0][0]) == (0, 3, 1)
    assert logprob.logprob == pytest.approx(log_softmax(np.array([1.0, 4.0, 3.0]))[0], abs=1e-6)


def test_ranks_at_a_tie_follow_ids(sampler: Sampler) -> None:
    logits = logits_of([1.0, 1.0, 2.0, 1.0])
    ranks = [entry.rank for entry in sampler.prompt_logprobs(np.repeat(logits, 4, 0), [0, 1, 2, 3], 0)]
    assert ranks == [2, 3, 1, 4]


def test_excluded_tokens_are_never_among_the_best(sampler: Sampler) -> None:
    (entry,) = sampler.prompt_logprobs(logits_of([-np.inf, 0.0, -np.inf]), [1], 3)
    assert entry.top == ((1, 0.0),)


def test_prompt_logprobs_equal_float64(sampler: Sampler) -> None:
    rng = np.random.default_rng(8)
    logits = rng.normal(0, 6, (32, 49152)).astype(np.float32)
    ids = rng.integers(0, 49152, 32).tolist()
    entries = sampler.prompt_logprobs(logits, ids, 1)
    assert [entry.token_id for entry in entries] == ids
    for row, token_id, entry in zip(logits, ids, entries, strict=True):
        expected = log_softmax(row)
        assert entry.logprob == pytest.approx(expected[token_id], abs=1e-4)
        assert entry.top[0][0] == int(row.argmax())
        assert entry.rank == 1 + int((row > row[token_id]).sum())


def test_logprobs_of_a_row_sum_to_one(sampler: Sampler) -> None:
    logits = np.random.default_rng(1).normal(0, 3, (1, 500)).astype(np.float32)
    entries = sampler.prompt_logprobs(np.repeat(logits, 500, 0), range(500), 0)
    assert sum(np.exp(entry.logprob) for entry in entries) == pytest.approx(1.0, abs=1e-5)
