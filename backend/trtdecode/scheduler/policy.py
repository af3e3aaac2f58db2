"""Who goes first, who is preempted, and how starvation is bounded: the one place that decides between requests.

Order: promoted requests, then priority (lower first), then arrival, then id. Running sequences are served in this
order, waiting ones start in this order, and preemption takes the last one.

Starvation: strict priorities would let a steady stream of urgent requests hold back the others for ever. So every
`turn_every`-th start belongs to the request that arrived first of all that wait, whatever its priority. It is
*promoted*: from then on it precedes every unpromoted request, so that nobody less patient can preempt it. A request
with m older ones waiting therefore starts after at most `turn_every * (m + 1)` starts, and the urgent class keeps at
least (turn_every - 1) / turn_every of them. A request that was preempted waits with its original arrival: the oldest
of all, it has the next turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trtdecode.request import Request

OrderKey = tuple[bool, int, float, int]


@dataclass(slots=True)
class PriorityPolicy:
    """Strict priority with a bounded wait. One scheduler's; counts its starts."""

    turn_every: int = 8
    num_starts: int = 0

    def key(self, request: Request) -> OrderKey:
        """Ascending order of service. Changes only by promotion, which happens when a request starts."""
        return (not request.promoted, *request.order_key)

    def choose(self, ready: Iterable[Request]) -> Request | None:
        """Which of the waiting requests (in order) starts next; None if there is none."""
        if self.num_starts % self.turn_every == self.turn_every - 1:
            return min(ready, key=_age, default=None)
        return next(iter(ready), None)

    def started(self, request: Request) -> None:
        """Call before the request joins the running ones: takes note, and promotes it if this was its turn."""
        if self.num_starts % self.turn_every == self.turn_every - 1:
            request.promote()
        self.num_starts += 1

    def victim(self, running: list[Request]) -> Request:
        """Whom to preempt; `running` is in order."""
        return running[-1]

    def headroom(self, num_running: int) -> int:
        """Blocks that a start must leave available: one more for each running sequence, so that the newcomer is not
        preempted before its neighbours have moved on by a block. 0 when nothing runs: then anything that fits starts.
        """
        return num_running


def _age(request: Request) -> tuple[float, int]:
    return (request.arrival_time, request.request_id)
