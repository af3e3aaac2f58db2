"""The request: the one mutable object that travels from Triton's `execute` to its final response.

    Triton request -> Request -> Batch -> BatchResult -> TokenEvent -> Triton response

Only `Request` changes a `Request`; everything else reads it. Derived facts are properties. One `Request` is one
sample: `n` > 1 makes n of them that share a prompt (the first computes it, the rest fork its blocks).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtdecode.errors import RequestError
from trtdecode.protocols import OutputState
from trtdecode.sampling.params import SamplingParams

if TYPE_CHECKING:
    from trtdecode.kv_cache.block_hash import BlockKey
    from trtdecode.kv_cache.sequence_blocks import SequenceBlocks, SwappedBlocks

_request_ids = itertools.count(1)


class RequestState(enum.Enum):
    """Where a request is. WAITING -> RUNNING -> FINISHED, and RUNNING -> WAITING on preemption."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(enum.Enum):
    """Why generation ended, in OpenAI's words; ERROR carries a RequestError."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities at one position, of the model's distribution before temperature and truncation."""

    token_id: int
    logprob: float
    rank: int  # 1 is the most likely
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), most likely first


@dataclass(slots=True)
class TokenEvent:
    """What one step adds to one request's answer. `finish_reason` is set on the last event and only there."""

    request: Request
    token_ids: list[int]  # new since the previous event; may be empty while text is held back
    text: str  # new text, valid UTF-8 by itself
    logprobs: list[TokenLogprob] | None = None  # one a token of token_ids, when params.logprobs asks for them
    prompt_logprobs: list[TokenLogprob | None] | None = None  # on the first event of sample 0; entry 0 is None
    finish_reason: FinishReason | None = None
    error: RequestError | None = None

    @property
    def is_final(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One sample being decoded.

    Four counts say where it is. There are no prefill and decode phases: `num_scheduled_tokens` chases the rest.

        num_computed_tokens  <= num_scheduled_tokens <= num_tokens + num_pending
        K/V are in the cache    or being written by a   known tokens, and those that
                                step in flight          steps in flight will choose

    With the plain loop nothing is in flight when a step is scheduled, and the first two are equal. Preemption sets
    both back to 0 and keeps the output; whatever a swap does not bring back is computed again as one long "prompt".
    """

    prompt_ids: list[int]
    params: SamplingParams
    on_event: Callable[[TokenEvent], None]  # called on the loop's thread; must not block
    seed: int  # params.seed, or the one drawn at admission
    arrival_time: float  # seconds on the loop's clock
    deadline: float | None = None  # seconds on the loop's clock
    timeout_ms: float = 0.0  # what set the deadline, for the error text
    sample_index: int = 0
    parent: Request | None = None  # the sample whose prompt blocks this one forks
    is_cancelled: Callable[[], bool] = bool  # polled by the loop; bool() is False
    max_total_tokens: int = 0  # prompt + output limit, settled at admission (context, pool and max_tokens)
    caller_id: str = ""  # the client's own id, for logs only; never a key
    trace_id: str = ""
    bad_word_ids: tuple[tuple[int, ...], ...] = ()  # params.bad_words as tokens (Tokenizer.bad_word_ids)
    extra_keys: tuple[Any, ...] = ()  # what else the prefix cache must tell apart: strings and numbers
    request_id: int = field(default_factory=lambda: next(_request_ids))

    state: RequestState = RequestState.WAITING
    output_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_scheduled_tokens: int = 0
    num_pending: int = 0
    num_unscheduled_tokens: int = 0  # that the next step may compute; kept by start and schedule
    num_cached_tokens: int = 0  # of the prompt, taken from the prefix cache at the first schedule
    num_preemptions: int = 0
    promoted: bool = False  # its turn has come whatever its priority: scheduler/policy.py
    start_time: float | None = None  # when it first left the queue
    first_token_time: float | None = None
    last_token_time: float | None = None
    finish_reason: FinishReason | None = None
    cumulative_logprob: float = 0.0
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)  # sample 0's; filled chunk by chunk
    blocks: SequenceBlocks | None = None  # KV blocks; the cache manager's
    swapped: SwappedBlocks | None = None  # K/V in the host pool while preempted; the cache manager's
    block_keys: list[BlockKey] = field(default_factory=list)  # of its full blocks, as far as they were needed
    needs_logits: bool = True  # False: an argmax is enough (Sampler.needs_logits)
    sampling_row: tuple[Any, ...] | None = None  # what an executor may choose its tokens by (Sampler.sampling_row)
    stop_ids: frozenset[int] = frozenset()  # tokens that may end it: EOS unless ignored, and params.stop_token_ids
    output: OutputState | None = None  # detokenizer and stop strings; None: token ids only
    guide: Any = None  # structured output's per-request state
    sampler_state: Any = None  # the sampler's own per-request state (token counts, processors)

    def __post_init__(self) -> None:
        if self.params.prompt_logprobs is not None and self.sample_index == 0:
            self.prompt_logprobs = [None]  # nothing predicts the first token

    def __repr__(self) -> str:
        counts = f"{self.num_computed_tokens}/{self.num_scheduled_tokens}/{self.num_tokens}+{self.num_pending}"
        return f"<Request {self.request_id} {self.state.value} {counts}>"

    @property
    def priority(self) -> int:
        return self.params.priority

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output, as far as it is known."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def needs_prompt_logits(self) -> bool:
        """True until sample 0 has the prompt logprobs it asks for; such a request takes no prefix hit."""
        return (
            self.params.prompt_logprobs is not None
            and self.sample_index == 0
            and len(self.prompt_logprobs) < len(self.prompt_ids)
        )

    @property
    def order_key(self) -> tuple[int, float, int]:
        """Priority, then arrival, then id: the order of admission; preemption takes the greatest key."""
        return (self.params.priority, self.arrival_time, self.request_id)

    def token_slice(self, begin: int, end: int) -> list[int]:
        """Tokens `begin` to `end` of prompt and output without joining the two lists."""
        split = len(self.prompt_ids)
        if end <= split:
            return self.prompt_ids[begin:end]
        if begin >= split:
            return self.output_ids[begin - split : end - split]
        return self.prompt_ids[begin:] + self.output_ids[: end - split]

    def start(self, num_cached_tokens: int, now: float) -> None:
        """Leaves the queue with the first `num_cached_tokens` already in the cache."""
        self.state = RequestState.RUNNING
        self.num_computed_tokens = self.num_scheduled_tokens = num_cached_tokens
        # The last token of all is never computed: nothing follows it.
        self.num_unscheduled_tokens = min(self.num_tokens, self.max_total_tokens - 1) - num_cached_tokens
        if self.start_time is None:
            self.start_time = now
            self.num_cached_tokens = num_cached_tokens

    def promote(self) -> None:
        """Its turn has come (scheduler/policy.py): it precedes unpromoted requests for the rest of its life."""
        self.promoted = True

    def schedule(self, num_new_tokens: int) -> bool:
        """The next step computes `num_new_tokens` more. Returns whether it will choose a token."""
        self.num_scheduled_tokens += num_new_tokens
        self.num_unscheduled_tokens -= num_new_tokens
        if self.num_unscheduled_tokens:
            return False
        self.num_pending += 1
        if self.num_scheduled_tokens < self.max_total_tokens - 1:
            self.num_unscheduled_tokens = 1  # the token that this step will choose
        return True

    def complete(self, num_computed_tokens: int) -> None:
        """A step has succeeded: this many tokens are in the cache."""
        self.num_computed_tokens = num_computed_tokens

    def append(self, token_id: int, now: float, logprob: TokenLogprob | None = None) -> bool:
        """A step chose a token. Returns whether it may be the last: the limit is reached, or it may stop."""
        self.output_ids.append(token_id)
        self.num_pending -= 1
        if logprob is not None:
            self.cumulative_logprob += logprob.logprob
        if self.first_token_time is None:
            self.first_token_time = now
        self.last_token_time = now
        return token_id in self.stop_ids or len(self.prompt_ids) + len(self.output_ids) >= self.max_total_tokens

    def add_prompt_logprobs(self, position: int, logprobs: list[TokenLogprob]) -> None:
        """Log-probabilities of the prompt's tokens from `position` on; those known before (preemption) are skipped."""
        self.prompt_logprobs.extend(logprobs[len(self.prompt_logprobs) - position :])

    def preempt(self) -> None:
        """Back to the queue; K/V are gone or in the host pool, tokens stay. A token in flight will be appended."""
        self.state = RequestState.WAITING
        self.num_computed_tokens = self.num_scheduled_tokens = self.num_unscheduled_tokens = 0
        self.num_preemptions += 1

    def finish(self) -> None:
        """No step will schedule it again; its final event is due. Raises AssertionError on a second end."""
        assert self.state is not RequestState.FINISHED, f"request {self.request_id} finished twice"
        self.state = RequestState.FINISHED

    def close(self, reason: FinishReason) -> None:
        """Its final event is being sent. Raises AssertionError on a second one."""
        assert self.finish_reason is None, f"request {self.request_id} got a second final event"
        self.finish_reason = reason
