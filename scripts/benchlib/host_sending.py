"""What coalescing does at GPU-sized batches: tokens a response, and how long tokens wait for it.

The overlapped loop and the real sender; the channel takes what Triton's Python backend takes for a response (some
10,000 a second), without the CPU. A token's delay is from its event to the call that sends it.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from trtdecode.errors import RequestError
from trtdecode.loop import Loop
from trtdecode.request import TokenEvent
from trtdecode.responder import Part, Responder
from trtdecode.sender import Sender, Stream

SLEEP_S = 40e-6  # with the kernel's own slack some 100 us

MakeLoop = Callable[[Callable[[], Callable[[TokenEvent], None]]], Loop]


class Channel:
    """Takes its time, and is never cancelled."""

    def send(self, arrays: Mapping[str, Any] | None, error: RequestError | None, *, final: bool) -> None:
        time.sleep(SLEEP_S)

    def is_cancelled(self) -> bool:
        return False


class Meter:
    """The sender with one stream a request; notes when tokens come and go."""

    def __init__(self, max_delay_s: float) -> None:
        self.sender = Sender(print, max_delay_s=max_delay_s)
        self.delays: list[float] = []
        self.num_responses = 0

    def receiver(self) -> Callable[[TokenEvent], None]:
        """`on_event` of one more request."""
        waiting: deque[float] = deque()

        def render(part: Part) -> dict[str, Any]:
            now = time.perf_counter()
            self.delays += [now - waiting.popleft() for _ in part.deltas[0].token_ids]
            self.num_responses += 1
            return {}

        stream = Stream(Responder(1, stream=True), Channel(), render)
        self.sender.add(stream)

        def on_event(event: TokenEvent) -> None:
            waiting.extend([time.perf_counter()] * len(event.token_ids))
            self.sender.push(stream, event)

        return on_event


def measure_sending(make_loop: MakeLoop, steps: int, max_delay_s: float) -> dict[str, float]:
    """Milliseconds and counts over `steps` steps."""
    meter = Meter(max_delay_s)
    loop = make_loop(meter.receiver)
    meter.delays.clear()
    meter.num_responses, begin = 0, time.perf_counter()
    for _ in range(steps):
        loop.step()
    seconds, delays = time.perf_counter() - begin, list(meter.delays)
    cuts = statistics.quantiles(delays, n=100)
    figures = {
        "tokens_a_response": len(delays) / meter.num_responses,
        "responses_a_second": meter.num_responses / seconds,
        "delay_p50_ms": cuts[49] * 1e3,
        "delay_p99_ms": cuts[98] * 1e3,
        "delay_max_ms": max(delays) * 1e3,
        "step_ms": seconds / steps * 1e3,
    }
    loop.stop()
    meter.sender.close(5)
    return figures
