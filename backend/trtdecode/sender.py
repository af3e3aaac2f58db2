"""The thread that sends responses, and the one that asks Triton who has gone away.

Sending costs 70-170 us, which the loop's thread must not pay: it only merges events into `Responder`s. With many
streams tokens wait for their successors (`pacing.py`), and where the sender falls behind they are merged as well, so
throughput rises instead of a queue. At most one entry a live request waits here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy.typing as npt

from trtdecode.errors import RequestError
from trtdecode.pacing import Pace, Pacer
from trtdecode.request import TokenEvent
from trtdecode.responder import Part, Responder

#: Seconds between rounds of asking for cancellation, and how often a second it is asked at most. A question is a round
#: trip: 640 a second cost 32 streams 6 % of their tokens, 200 cost 2 to 4 %. Who left is noticed after live / 100 s at
#: most, sooner where somebody knows (`poll_soon`).
POLL_INTERVAL_S = 0.025
MAX_POLLS_PER_S = 100
#: Triton notes a cancellation some milliseconds after the client's end: so long all rounds follow one another.
URGENT_S = 0.1


class Channel(Protocol):
    """Where one request's responses go (a Triton response sender, or a test's list)."""

    def send(self, arrays: Mapping[str, npt.NDArray[Any]] | None, error: RequestError | None, *, final: bool) -> None:
        """Sends one response: tensors, or an error, or nothing but the end."""
        ...

    def is_cancelled(self) -> bool:
        """Asks the server; a round trip."""
        ...


class Stream:
    """One Triton request: its responder, its channel, and how a part becomes tensors."""

    def __init__(
        self, responder: Responder, channel: Channel, render: Callable[[Part], Mapping[str, npt.NDArray[Any]]]
    ) -> None:
        self.responder = responder
        self.channel = channel
        self.render = render
        self.last_sent_time = time.monotonic()
        self.pace = Pace()  # under the sender's lock
        # Held while the channel is in use: after the final response Triton has freed what is_cancelled() would read.
        self.channel_lock = threading.Lock()
        self.is_closed = False

    @property
    def is_cancelled(self) -> bool:
        """What the loop polls: a flag, never a round trip."""
        return self.responder.is_cancelled


class Sender:
    """Sends what the loop made, on its own thread.

    Args:
        on_error: told when a response could not be sent (the server refused it); the stream is then cancelled.
        keepalive_s: a stream silent for longer gets an empty delta (0: never).
        max_delay_s: what a token may wait for its successors where many streams are sent to (0: nothing waits).
    """

    def __init__(self, on_error: Callable[[str], None], keepalive_s: float = 0.0, max_delay_s: float = 0.0) -> None:
        self._on_error = on_error
        self._keepalive_s = keepalive_s
        self._condition = threading.Condition()
        self._queue: dict[Stream, None] = {}  # insertion-ordered set of streams with something to send
        self._held: dict[Stream, float] = {}  # streams whose tokens wait for more, and until when at most
        self._live: dict[Stream, None] = {}
        self._pacer = Pacer(max_delay_s)
        self._is_closing = False
        self._stop_polling = False
        self._wake_poller = threading.Event()
        self._urgent_until = 0.0
        self._sender = threading.Thread(target=self._run, name="trtdecode-sender", daemon=True)
        self._poller = threading.Thread(target=self._poll, name="trtdecode-poller", daemon=True)
        self._sender.start()
        self._poller.start()

    @property
    def num_live(self) -> int:
        """Requests that have not got their final response."""
        with self._condition:
            return len(self._live)

    def add(self, stream: Stream) -> None:
        """Makes a request known before its first event."""
        with self._condition:
            self._live[stream] = None

    def push(self, stream: Stream, event: TokenEvent) -> None:
        """Takes one event from the loop's thread; never blocks for longer than a merge."""
        with self._condition:
            stream.responder.push(event)
            if stream.responder.is_ready and stream not in self._queue and not self._hold(stream):
                self._enqueue(stream)

    def fail(self, stream: Stream, error: RequestError) -> None:
        """Ends a request that was not admitted."""
        with self._condition:
            stream.responder.fail(error)
            self._enqueue(stream)

    def poll_soon(self) -> None:
        """A client has just left: asks now, and again, instead of at its usual pace."""
        self._urgent_until = time.monotonic() + URGENT_S
        self._wake_poller.set()

    def _enqueue(self, stream: Stream) -> None:
        if stream.responder.is_ready and stream not in self._queue:
            self._queue[stream] = None
            self._condition.notify()

    def _hold(self, stream: Stream) -> bool:
        """Whether what the stream has waits for more."""
        until = self._pacer.hold_until(stream.pace, time.monotonic(), len(self._live))
        if until is None or stream.responder.is_ended:
            return False
        if not self._held:
            self._condition.notify()  # the sender's thread now has a time to wake at
        self._held.setdefault(stream, until)
        return True

    def _release(self) -> float | None:
        """Queues what has waited long enough; returns seconds until the next that will have, None with none."""
        now = time.monotonic()
        while self._held:
            stream, until = next(iter(self._held.items()))
            if until > now and not self._is_closing:
                return until - now
            del self._held[stream]
            self._queue[stream] = None
        return None

    def close(self, timeout_s: float) -> int:
        """Sends what is left, stops both threads, and returns the number of requests without a final response."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        self._stop_polling = True
        self._wake_poller.set()
        self._sender.join(timeout_s)
        self._poller.join(timeout_s)
        return self.num_live

    def _run(self) -> None:
        while True:
            with self._condition:
                pause = self._release()
                while not self._queue and not self._is_closing:
                    self._condition.wait(pause)
                    pause = self._release()
                if not self._queue:
                    return
                batch = list(self._queue)
                self._queue.clear()
            for stream in batch:
                # Taken one by one: what the loop adds meanwhile goes out with it.
                with self._condition:
                    part = stream.responder.take()
                    self._queue.pop(stream, None)
                    self._held.pop(stream, None)
                begin = time.monotonic()
                self._send(stream, part)
                with self._condition:
                    self._pacer.sent(stream.pace, time.monotonic() - begin)

    def _send(self, stream: Stream, part: Part) -> None:
        with stream.channel_lock:
            if stream.is_closed:
                return
            stream.is_closed = part.is_final
            try:
                self._send_part(stream, part)
            except Exception as error:  # the server's own refusal; the loop must end the request, not die of it
                stream.responder.is_cancelled = True
                self._on_error(f"response could not be sent: {error}")
            stream.last_sent_time = time.monotonic()
        if part.is_final:
            with self._condition:
                self._live.pop(stream, None)

    def _send_part(self, stream: Stream, part: Part) -> None:
        if part.error is None:
            stream.channel.send(stream.render(part), None, final=part.is_final)
            return
        if stream.responder.stream and any(delta.token_ids or delta.text for delta in part.deltas):
            stream.channel.send(stream.render(part), None, final=False)
        stream.channel.send(None, part.error, final=True)

    def _poll(self) -> None:
        pause = POLL_INTERVAL_S
        while True:
            self._wake_poller.wait(pause)
            if self._stop_polling:
                return
            self._wake_poller.clear()
            begin = time.monotonic()
            with self._condition:
                streams = list(self._live)
            for stream in streams:
                self._poll_one(stream, begin)
            is_urgent = begin < self._urgent_until
            pause = POLL_INTERVAL_S if is_urgent else max(POLL_INTERVAL_S, len(streams) / MAX_POLLS_PER_S)

    def _poll_one(self, stream: Stream, now: float) -> None:
        with stream.channel_lock:
            if stream.is_closed or stream.responder.is_cancelled:
                return
            try:
                if stream.channel.is_cancelled():
                    stream.responder.is_cancelled = True
                    return
            except Exception as error:
                stream.responder.is_cancelled = True
                self._on_error(f"asking for cancellation failed: {error}")
                return
            is_silent = self._keepalive_s and now - stream.last_sent_time > self._keepalive_s
            if is_silent and stream.responder.stream:
                with self._condition:
                    part = stream.responder.take() if not stream.responder.is_ready else None
                if part is not None:
                    stream.channel.send(stream.render(part), None, final=False)
                    stream.last_sent_time = now
