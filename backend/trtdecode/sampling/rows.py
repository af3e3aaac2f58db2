"""Two ways to work on rows of logits, with the same results: plain numpy here, C++ in `native_rows.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trtdecode.request import Request, TokenLogprob
from trtdecode.sampling.logprobs import row_logprob
from trtdecode.sampling.philox import uniform
from trtdecode.sampling.stages import NOT_FINITE, choose, edit_logits
from trtdecode.sampling.state import SamplerState

Logits = npt.NDArray[np.float32]


class RowSampler(Protocol):
    """Works on rows of logits [S, V]; row i of the logits belongs to the i-th request."""

    def choose(self, logits: Logits, requests: Sequence[Request], states: Sequence[SamplerState]) -> list[int]:
        """For each request a token id, or what `stages.choose` says instead.

        NO_TOKEN_LEFT means that the request's own restrictions exclude every token; a row that the executor returned
        without any finite logit is NOT_FINITE.
        """
        ...

    def logprobs(
        self, logits: Logits, rows: Sequence[int], token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprob]:
        """`row_logprob` of token_ids[i] in row rows[i]; the rows are finite."""
        ...


class NumpyRows:
    """The reference, row by row."""

    name = "numpy"

    def choose(self, logits: Logits, requests: Sequence[Request], states: Sequence[SamplerState]) -> list[int]:
        return [
            _choose(row, request, state)
            for row, request, state in zip(logits[: len(requests)], requests, states, strict=True)
        ]

    def logprobs(
        self, logits: Logits, rows: Sequence[int], token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprob]:
        return [row_logprob(logits[row], token, num_top) for row, token in zip(rows, token_ids, strict=True)]


def _choose(row: npt.NDArray[np.float32], request: Request, state: SamplerState) -> int:
    if not np.isfinite(row.max()):
        return NOT_FINITE
    params = request.params
    if not state.is_plain:
        row = edit_logits(row, params, state.edits(request))
    u = 0.0 if params.greedy else uniform(request.seed, request.sample_index, request.num_tokens)
    return choose(row, params, u)
