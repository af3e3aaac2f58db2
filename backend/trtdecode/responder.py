"""One caller's answer while it is being made: merges the events of its samples until somebody takes them.

The loop's thread pushes `TokenEvent`s, the sender's thread takes `Delta`s. Whatever has not been taken yet is merged,
so that what waits here is at most one delta a sample, however slow the taker is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trtdecode.errors import ExecutorFailed, RequestCancelled, RequestError
from trtdecode.request import FinishReason, TokenEvent, TokenLogprob


@dataclass(slots=True)
class Delta:
    """What one sample's answer gained since the last `take`."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: FinishReason | None = None  # once the sample has ended, in every later delta too
    cumulative_logprob: float = 0.0  # of the whole sample so far

    def add(self, event: TokenEvent) -> None:
        """Merges one event of the same sample."""
        self.text += event.text
        self.token_ids += event.token_ids
        if event.logprobs:
            self.logprobs += event.logprobs
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = event.prompt_logprobs
        self.finish_reason = event.finish_reason
        self.cumulative_logprob = event.request.cumulative_logprob


@dataclass(frozen=True, slots=True)
class Part:
    """What is to be sent now."""

    deltas: list[Delta]  # one a sample, in the order of the samples
    is_first: bool
    is_final: bool
    error: RequestError | None = None


class Responder:
    """Collects `num_samples` samples into parts. Not thread-safe by itself: the sender holds its lock.

    Args:
        stream: parts may be taken at any time; otherwise only one, when every sample has ended.
    """

    def __init__(self, num_samples: int, *, stream: bool) -> None:
        self.stream = stream
        self.is_cancelled = False  # the caller went away, or a sample failed: the loop ends the rest
        self._deltas = [Delta() for _ in range(num_samples)]
        self._num_running = num_samples
        self._error: RequestError | None = None
        self._num_taken = 0
        self._has_news = False

    def push(self, event: TokenEvent) -> None:
        """Takes one event of one sample."""
        self._deltas[event.request.sample_index].add(event)
        self._has_news = self._has_news or bool(event.text or event.token_ids)
        if not event.is_final:
            return
        self._num_running -= 1
        error = event.error
        if error is None and event.finish_reason is FinishReason.CANCELLED:
            error = RequestCancelled()
        if error is None and event.finish_reason is FinishReason.ERROR:
            error = ExecutorFailed("the request ended with an error that left no reason; see the server's log")
        # The first failure is the answer; what it made us cancel says nothing new.
        if error is not None and self._error is None:
            self._error = error
            self.is_cancelled = True

    def fail(self, error: RequestError) -> None:
        """Ends the answer before or beside its samples (not admitted)."""
        self._num_running = 0
        self._error = error

    @property
    def is_ended(self) -> bool:
        """True when nothing will be pushed any more."""
        return self._num_running == 0

    @property
    def is_ready(self) -> bool:
        """True when `take` has something to send."""
        return self._num_running == 0 or (self.stream and self._has_news and self._error is None)

    def take(self) -> Part:
        """What is new since the last call; the caller sends it."""
        part = Part(self._deltas, self._num_taken == 0, self._num_running == 0, self._error)
        self._deltas = [
            Delta(finish_reason=delta.finish_reason, cumulative_logprob=delta.cumulative_logprob)
            for delta in self._deltas
        ]
        self._num_taken += 1
        self._has_news = False
        return part
