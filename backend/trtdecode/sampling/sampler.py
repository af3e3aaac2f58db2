"""Chooses tokens for the loop (`protocols.Sampler`): states, rows, errors. `rows.py` does the arithmetic."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trtdecode.errors import ExecutorFailed, InvalidRequest, RequestError
from trtdecode.executor.base import BatchResult
from trtdecode.protocols import SampleResult
from trtdecode.request import Request, TokenLogprob
from trtdecode.sampling.native_rows import row_sampler
from trtdecode.sampling.rows import RowSampler
from trtdecode.sampling.stages import NO_TOKEN_LEFT, min_p_limit
from trtdecode.sampling.state import SamplerState
from trtdecode.sampling.weights import MAX_VOCAB_SIZE


class Sampler:
    """One model's sampler. Keeps nothing itself: what it remembers lives on `request.sampler_state`.

    Args:
        eos_token_ids: tokens that min_tokens keeps back, besides a request's own stop_token_ids.
        num_threads: for the native rows; 0: as many as there are processors, at most 4.
        rows: another way to work on rows, for tests.
    """

    def __init__(self, eos_token_ids: Collection[int], *, num_threads: int = 0, rows: RowSampler | None = None) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)
        self._rows = rows or row_sampler(num_threads)

    def needs_logits(self, request: Request) -> bool:
        """False when an argmax from the executor is all that this request will ever need."""
        params = request.params
        return not params.greedy or params.logprobs is not None or not self._state(request).is_plain

    def sampling_row(self, request: Request) -> tuple[Any, ...] | None:
        """See `protocols.Sampler.sampling_row`: whatever edits no logits and wants no log-probabilities."""
        params = request.params
        if params.logprobs is not None or not self._state(request).is_plain:
            return None
        temperature = 0.0 if params.greedy else params.temperature
        limit = float(min_p_limit(params)) if params.min_p > 0.0 else -math.inf
        return request.seed, request.sample_index, 0, params.top_k, params.top_p, temperature, limit

    def prepare(self, requests: Sequence[Request]) -> None:
        """Computes the grammar masks of guided requests for their next token; cheap when done already."""
        for request in requests:
            if request.guide is not None:
                request.guide.prepare(request.output_ids)

    def sample(self, result: BatchResult, requests: Sequence[Request]) -> SampleResult:
        """Picks the next token of requests[i] from row i; see `protocols.Sampler.sample`."""
        if result.logits is None:
            chosen = result.argmax if result.token_ids is None else result.token_ids
            assert chosen is not None, "the executor returned neither logits nor tokens"
            found = chosen[: len(requests)].tolist()
            return SampleResult(found, [None] * len(requests), _errors_of(found, requests))
        assert result.logits.shape[1] <= MAX_VOCAB_SIZE, "sums of weights would no longer be exact"
        self.prepare(requests)
        states = [self._state(request) for request in requests]
        token_ids = self._rows.choose(result.logits, requests, states)
        errors = _errors_of(token_ids, requests)
        errors |= {row: r.guide.error for row, r in enumerate(requests) if r.guide is not None and r.guide.error}
        logprobs = self._logprobs(result.logits, requests, token_ids)
        return SampleResult(token_ids, logprobs, errors)

    def prompt_logprobs(
        self, logits: npt.NDArray[np.float32], token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprob]:
        """Log-probability of token_ids[i] under row i of logits [P, V], with the `num_top` best.

        Row i is the model's output after prompt token i, and token_ids[i] is prompt token i + 1.
        """
        return self._rows.logprobs(logits, range(len(token_ids)), token_ids, num_top)

    def _state(self, request: Request) -> SamplerState:
        if request.sampler_state is None:
            request.sampler_state = SamplerState(request, self._eos_token_ids)
        state: SamplerState = request.sampler_state
        return state

    def _logprobs(
        self, logits: npt.NDArray[np.float32], requests: Sequence[Request], token_ids: Sequence[int]
    ) -> list[TokenLogprob | None]:
        wanted = [
            (row, request.params.logprobs)
            for row, (request, token_id) in enumerate(zip(requests, token_ids, strict=True))
            if request.params.logprobs is not None and token_id >= 0
        ]
        found: list[TokenLogprob | None] = [None] * len(requests)
        for num_top in {count for _, count in wanted}:
            rows = [row for row, count in wanted if count == num_top]
            for row, logprob in zip(
                rows, self._rows.logprobs(logits, rows, [token_ids[row] for row in rows], num_top), strict=True
            ):
                found[row] = logprob
        return found


def _errors_of(token_ids: Sequence[int], requests: Sequence[Request]) -> dict[int, RequestError]:
    return {row: _error_of(token_id, requests[row]) for row, token_id in enumerate(token_ids) if token_id < 0}


def _error_of(code: int, request: Request) -> RequestError:
    if code != NO_TOKEN_LEFT:
        return ExecutorFailed(f"logits of request {request.request_id} are not finite; see the server's log")
    params = request.params
    field = "guide" if request.guide is not None else "bad_words" if params.bad_words else "min_tokens"
    return InvalidRequest(field, f"{request.num_output_tokens} output tokens", "leaves no token that may follow")
