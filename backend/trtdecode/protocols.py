"""What the loop asks of the parts it does not own, besides the executor (`executor/base.py`).

    Loop --prepare, sample, prompt_logprobs--> Sampler       sampling/sampler.py
    Loop --push, flush-----------------------> OutputState   text/output.py, one per request

Each has two or three methods, so that a test can stand in for one with ten lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from trtdecode.errors import RequestError
    from trtdecode.executor.base import BatchResult
    from trtdecode.request import Request, TokenLogprob


@dataclass(slots=True)
class SampleResult:
    """One entry a sampled request, in the order of the requests given."""

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]  # None where params.logprobs is None
    errors: dict[int, RequestError] = field(default_factory=dict)  # row -> why only this request must end


class Sampler(Protocol):
    """Chooses tokens. Called by the loop's thread only, but for `needs_logits`. Its state of a request is
    `sampler_state` and `guide`."""

    def needs_logits(self, request: Request) -> bool:
        """False when the request is plain greedy (no penalty, bias, mask, min_tokens, guide or logprobs), so that an
        argmax from the executor is enough. Asked once, by the thread that submits; raises RequestError to refuse."""
        ...

    def sampling_row(self, request: Request) -> tuple[Any, ...] | None:
        """What an executor that chooses tokens needs for this request's, in `SAMPLING_ROW`'s order with position 0;
        None when its logits must come to the host. Asked once, and only for such executors."""
        ...

    def prepare(self, requests: Sequence[Request]) -> None:
        """Work that needs no logits (grammar masks), while the executor runs. The plain loop does not call it, so
        `sample` must not rely on it."""
        ...

    def sample(self, result: BatchResult, requests: Sequence[Request]) -> SampleResult:
        """Picks the next token of requests[i] from row i of `result` (`logits`; or `argmax` or `token_ids`).

        Rows beyond len(requests) belong to `prompt_logprobs`. The random key of a row is (request.seed,
        request.sample_index, request.num_tokens): the position that the new token will have. Does not append.
        What is wrong with one row only (logits not finite, guide with no way out) goes into `errors`; raising fails
        the whole batch.
        """
        ...

    def prompt_logprobs(
        self, logits: npt.NDArray[np.float32], token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprob]:
        """Log-probability of token_ids[i] under row i of `logits` [P, V], with the `num_top` best."""
        ...


class OutputState(Protocol):
    """One request's text: incremental detokenizer and stop strings (hold-back included)."""

    def push(self, token_ids: Sequence[int]) -> tuple[str, bool]:
        """Takes new tokens; returns (text released now, whether a stop string was met).

        The text is valid UTF-8 by itself. After True nothing may be pushed: the text released is final, cut at the
        stop string (or after it, with `include_stop_str_in_output`).
        """
        ...

    def flush(self) -> str:
        """The text still held back, when the request ends otherwise. Called at most once, never after a stop."""
        ...
