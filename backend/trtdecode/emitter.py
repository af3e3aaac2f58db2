"""Turns chosen tokens into events: detokenise, look for stop strings, call `on_event`.

Apart from the loop so that it can run one step late, while the executor works. Whatever goes wrong with one request's
text or callback ends that request and no other. Every accepted request leaves here with exactly one final event, also
when the loop's thread is stuck: then the thread that drains sends it, and what comes later is dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from trtdecode.errors import ExecutorFailed, RequestCancelled, RequestError
from trtdecode.protocols import OutputState
from trtdecode.request import FinishReason, Request, RequestState, TokenEvent, TokenLogprob

log = logging.getLogger(__name__)

_ABANDON_S = 1.0

#: request, token (None: an end without one), its logprob, why the request ends, and with which error
_Entry = tuple[Request, int | None, TokenLogprob | None, FinishReason | None, RequestError | None]


class Emitter:
    """A queue of tokens and ends, flushed once a step.

    Args:
        finish: takes a request out of the loop (a stop string ended it); called at most once a request.
        closed: called after a request's final event was sent.
    """

    def __init__(self, finish: Callable[[Request], None], closed: Callable[[Request], None]) -> None:
        self._finish = finish
        self._closed = closed
        self._queue: list[_Entry] = []
        self._lock = threading.Lock()  # one event at a time: two threads may want to send the final one

    def token(self, request: Request, token_id: int, logprob: TokenLogprob | None, reason: FinishReason | None) -> None:
        """One more token; with a reason (the request is already finished) it is the last one."""
        self._queue.append((request, token_id, logprob, reason, None))

    def end(self, request: Request, reason: FinishReason, error: RequestError) -> None:
        """The request (already finished) ends without another token."""
        self._queue.append((request, None, None, reason, error))

    def flush(self) -> bool:
        """Sends everything queued, in order. Returns whether there was anything."""
        queue, self._queue = self._queue, []
        for entry in queue:
            with self._lock:
                if entry[0].finish_reason is None:
                    self._send(*entry)
        return bool(queue)

    def abandon(self, request: Request, error: RequestError) -> None:
        """Sends the final event of a request whose loop does not come back. Any thread."""
        has_lock = self._lock.acquire(timeout=_ABANDON_S)  # the loop may be stuck in a receiver, with the lock
        try:
            if request.finish_reason is None:
                self._deliver_last(TokenEvent(request, [], "", finish_reason=FinishReason.CANCELLED, error=error))
        finally:
            if has_lock:
                self._lock.release()

    def _send(
        self,
        request: Request,
        token_id: int | None,
        logprob: TokenLogprob | None,
        reason: FinishReason | None,
        error: RequestError | None,
    ) -> None:
        text, output = "", request.output
        if output is not None and error is None:
            try:
                if reason is None and token_id is not None:
                    text, is_stopped = output.push((token_id,))
                    if is_stopped:
                        reason = FinishReason.STOP
                else:
                    text, reason = _last_text(request, output, token_id, reason)
            except Exception as failure:
                log.exception("request %d: text output failed", request.request_id)
                reason, error = FinishReason.ERROR, ExecutorFailed(f"text output failed: {failure!r}")
        event = TokenEvent(
            request,
            [] if token_id is None else [token_id],
            text,
            None if logprob is None else [logprob],
            None,
            reason,
            error,
        )
        if request.prompt_logprobs and error is None and request.num_output_tokens == 1:
            event.prompt_logprobs = request.prompt_logprobs
        if reason is not None:
            self._close(request, event)
            return
        try:
            request.on_event(event)
        except Exception:
            log.exception("request %d: on_event raised; the request ends", request.request_id)
            gone = RequestCancelled("ended because its receiver failed")
            self._close(request, TokenEvent(request, [], "", finish_reason=FinishReason.CANCELLED, error=gone))

    def _close(self, request: Request, event: TokenEvent) -> None:
        if request.state is not RequestState.FINISHED:
            self._finish(request)
        self._deliver_last(event)

    def _deliver_last(self, event: TokenEvent) -> None:
        request = event.request
        assert event.finish_reason is not None
        request.close(event.finish_reason)
        try:
            request.on_event(event)
        except Exception:
            log.exception("request %d: on_event raised on the final event", request.request_id)
        self._closed(request)


def _last_text(
    request: Request, output: OutputState, token_id: int | None, reason: FinishReason | None
) -> tuple[str, FinishReason | None]:
    """All text that is left, and why the request ends: a stop string in the last token precedes other reasons.

    The text of a stop token is left out unless the request includes stops in its output.
    """
    text = ""
    if token_id is not None and (reason is not FinishReason.STOP or request.params.include_stop_str_in_output):
        text, is_stopped = output.push((token_id,))
        if is_stopped:
            return text, FinishReason.STOP
    return text + output.flush(), reason
