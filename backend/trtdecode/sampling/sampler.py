"""Chooses tokens for the loop: greedy rows at once, the others by the native module or by plain numpy.

Both ways give the same tokens (`weights.py` says why); the numpy one is the reference.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from trtdecode.errors import ExecutorFailed, InvalidRequest, RequestError
from trtdecode.executor.base import BatchResult
from trtdecode.protocols import SampleResult
from trtdecode.request import Request, TokenLogprob
from trtdecode.sampling.logprobs import row_logprob, rows_logprobs
from trtdecode.sampling.philox import uniform
from trtdecode.sampling.stages import choose, edit_logits
from trtdecode.sampling.state import SamplerState
from trtdecode.sampling.weights import FloatRow


class Sampler:
    """The loop's sampler (`protocols.Sampler`).

    Args:
        eos_token_ids: tokens that min_tokens keeps back besides a request's own stop_token_ids.
    """

    def __init__(self, eos_token_ids: Collection[int]) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)

    def needs_logits(self, request: Request) -> bool:
        """False when an argmax from the executor is all that this request will ever need."""
        params = request.params
        return not params.greedy or params.logprobs is not None or not self._state(request).is_plain

    def prepare(self, requests: Sequence[Request]) -> None:
        """Computes the grammar masks of guided requests for their next token."""
        for request in requests:
            if request.guide is not None:
                request.guide.prepare(request.output_ids)

    def sample(self, result: BatchResult, requests: Sequence[Request]) -> SampleResult:
        """Picks the next token of requests[i] from row i; see `protocols.Sampler.sample`."""
        if result.logits is None:
            assert result.argmax is not None, "the executor returned neither logits nor argmax"
            return SampleResult(result.argmax[: len(requests)].tolist(), [None] * len(requests))
        self.prepare(requests)
        sampled = SampleResult([0] * len(requests), [None] * len(requests))
        for row, request in enumerate(requests):
            try:
                sampled.token_ids[row] = self._choose(result.logits[row], request)
            except RequestError as error:
                sampled.errors[row] = error
                continue
            if request.params.logprobs is not None:
                num_top = request.params.logprobs
                sampled.logprobs[row] = row_logprob(result.logits[row], sampled.token_ids[row], num_top)
        return sampled

    def prompt_logprobs(
        self, logits: npt.NDArray[np.float32], token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprob]:
        """Log-probability of token_ids[i] under row i of logits [P, V], with the `num_top` best."""
        return rows_logprobs(logits, token_ids, num_top)

    def _state(self, request: Request) -> SamplerState:
        if request.sampler_state is None:
            request.sampler_state = SamplerState(request, self._eos_token_ids)
        state: SamplerState = request.sampler_state
        return state

    def _choose(self, row: FloatRow, request: Request) -> int:
        if not np.isfinite(row.max()):
            raise ExecutorFailed(f"logits of request {request.request_id} are not finite; see the server's log")
        state = self._state(request)
        if not state.is_plain:
            row = edit_logits(row, request.params, state.edits(request))
        greedy = request.params.greedy
        u = 0.0 if greedy else uniform(request.seed, request.sample_index, request.num_tokens)
        token_id = choose(row, request.params, u)
        if token_id < 0:
            raise no_token_left(request)
        return token_id


def no_token_left(request: Request) -> RequestError:
    """The error of a request whose own restrictions exclude every token."""
    params = request.params
    field = "guided decoding" if request.guide is not None else "bad_words" if params.bad_words else "logit_bias"
    return InvalidRequest(field, request.num_output_tokens, "output tokens, and no token may follow; loosen it")
