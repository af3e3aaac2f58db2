"""The door: any thread knocks, the loop's thread opens once a step.

Bounded: at most `max_num_seqs` requests run and `max_queue_size` wait; one more is refused at once, so that a caller
behind a load balancer can go elsewhere. Deadlines are watched for waiting and running requests alike, in a heap, so
that a step costs O(1) for those that have time left.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Sequence

from trtdecode.config import ServingConfig
from trtdecode.errors import Draining, InvalidRequest, QueueFull
from trtdecode.kv_cache.manager import KVCacheManager
from trtdecode.manifest import ModelSpec
from trtdecode.request import Request, RequestState

log = logging.getLogger(__name__)


class Admission:
    """Checks requests, bounds their number, and hands them to the loop in the order of submission.

    `submit` and `close_door` may be called by any thread; the rest belongs to the loop's.
    """

    def __init__(self, config: ServingConfig, spec: ModelSpec, kv: KVCacheManager) -> None:
        self.max_context_len = min(config.max_context_len or spec.max_context_len, spec.max_context_len)
        self._kv = kv
        self._vocab_size = spec.vocab_size
        self._eos_token_ids = spec.eos_token_ids
        self._default_max_tokens = config.default_max_tokens
        self._max_queue_size = config.max_queue_size
        self._capacity = config.max_num_seqs + config.max_queue_size
        self._lock = threading.Lock()
        self._inbox: deque[Request] = deque()
        self._num_inside = 0  # accepted and not ended
        self._is_draining = False
        self._is_empty = threading.Condition(self._lock)
        self._deadlines: list[tuple[float, int, Request]] = []
        self._polled: dict[int, Request] = {}  # taken in, unfinished, and able to be cancelled

    # -- any thread -------------------------------------------------------------------------------------------------

    def submit(self, requests: tuple[Request, ...]) -> None:
        """Accepts all of the requests (the samples of one call) or none.

        Raises:
            InvalidRequest: a prompt that is empty, out of the vocabulary, or (with max_tokens) longer than the context
                or the pool can ever take.
            QueueFull, Draining: nothing wrong with the requests; not now.
        """
        for request in requests:
            self._check(request)
        with self._lock:
            if self._is_draining:
                raise Draining
            if self._num_inside + len(requests) > self._capacity:
                raise QueueFull(self._max_queue_size)
            self._num_inside += len(requests)
            self._inbox.extend(requests)

    def close_door(self) -> None:
        """From now on `submit` raises Draining."""
        with self._lock:
            self._is_draining = True

    def open_door(self) -> None:
        """Undoes `close_door`."""
        with self._lock:
            self._is_draining = False

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def num_inside(self) -> int:
        """Requests accepted whose final event has not been sent."""
        return self._num_inside

    def drop_arrivals(self) -> list[Request]:
        """Takes out who arrived and was not taken in yet; the caller sends their final events."""
        with self._lock:
            arrivals = list(self._inbox)
            self._inbox.clear()
        return arrivals

    def wait_empty(self, timeout: float | None) -> bool:
        """Blocks until every accepted request has ended; False on timeout (seconds)."""
        with self._lock:
            return self._is_empty.wait_for(lambda: self._num_inside == 0, timeout)

    def _check(self, request: Request) -> None:
        prompt_ids = request.prompt_ids
        if not prompt_ids:
            raise InvalidRequest("prompt", [], "must hold at least one token")
        if min(prompt_ids) < 0 or max(prompt_ids) >= self._vocab_size:
            bad = next(token for token in prompt_ids if not 0 <= token < self._vocab_size)
            raise InvalidRequest("input_ids", bad, f"token ids must be in 0..{self._vocab_size - 1}")
        request.max_total_tokens = self._max_total_tokens(request)
        request.stop_ids = _stop_ids(request, self._eos_token_ids)
        self._kv.check_fits(request.max_total_tokens - 1, "prompt and max_tokens")

    def _max_total_tokens(self, request: Request) -> int:
        """Prompt and output together. What is asked for is delivered or refused; what is not asked for is clamped."""
        num_prompt = request.num_prompt_tokens
        limit = self.max_context_len
        if num_prompt >= limit:
            raise InvalidRequest(
                "prompt", num_prompt, f"tokens leave no room in a context of {limit}; send at most {limit - 1} tokens"
            )
        if request.params.max_tokens is not None:
            total = num_prompt + request.params.max_tokens
            if total > limit:
                raise InvalidRequest(
                    "max_tokens",
                    request.params.max_tokens,
                    f"with a prompt of {num_prompt} tokens at most {limit - num_prompt} fit a context of {limit}",
                )
            return total
        # The last token is never cached, so a pool of N tokens serves sequences of N + 1.
        total = max(num_prompt + 1, min(limit, self._kv.max_cached_tokens + 1))
        return min(total, num_prompt + self._default_max_tokens) if self._default_max_tokens else total

    # -- the loop's thread ------------------------------------------------------------------------------------------

    def take(self) -> list[Request]:
        """New arrivals since the last call; their deadlines and clients are watched from here on."""
        if not self._inbox:
            return []
        arrivals = self.drop_arrivals()
        for request in arrivals:
            if request.is_cancelled is not bool:
                self._polled[request.request_id] = request
            if request.deadline is not None:
                heapq.heappush(self._deadlines, (request.deadline, request.request_id, request))
        return arrivals

    def expired(self, now: float) -> list[Request]:
        """Unfinished requests whose deadline has passed; each is returned once."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if request.state is not RequestState.FINISHED:
                late.append(request)
        return late

    def cancelled(self) -> list[Request]:
        """Unfinished requests whose client has given up."""
        return [request for request in self._polled.values() if _is_cancelled(request)]

    def finished(self, request: Request) -> None:
        """No longer polled; its final event is still to be sent."""
        self._polled.pop(request.request_id, None)

    def left(self, count: int = 1) -> None:
        """So many final events were sent."""
        with self._lock:
            self._num_inside -= count
            if self._num_inside == 0:
                self._is_empty.notify_all()


def _stop_ids(request: Request, eos_token_ids: Sequence[int]) -> frozenset[int]:
    """Tokens after which `check_token_stop` must look."""
    params = request.params
    return frozenset(params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *eos_token_ids))


def _is_cancelled(request: Request) -> bool:
    try:
        return request.is_cancelled()
    except Exception:
        log.exception("request %d: is_cancelled raised; the request ends", request.request_id)
        return True
