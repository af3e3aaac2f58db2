"""When new tokens wait for the next ones, so that one response carries several.

A response costs the stub, the server and the client some 0.1 ms each, whatever it carries; with many streams that is
time which the executor lacks. So each stream is sent to at most once an interval, which grows with what sending costs:

    interval = min(max_delay, streams * seconds a response / SHARE)

One stream of a model that takes milliseconds a token is never held. A first token and an end never wait, and neither
does a token whose successor would come too late. Where a step takes longer than the delay, a token may wait for one
more step, but never longer than twice the delay.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Of the time, what sending may take of one thread before tokens are sent together.
SHARE = 0.06
_SMOOTHING = 0.02  # of a new measurement in the mean
_TYPICAL_S = 0.0001  # a response, before any was measured
_DEAREST_S = 0.002  # what one counts at most: the first ones after a load, or one that was blocked, say nothing
_LATE = 1.25  # times its usual gap: so late the next token may be
_ONE_STEP_S = 0.0005  # pushes closer than this belong to one step (samples of one request)


@dataclass(slots=True)
class Pace:
    """One stream's tokens in time. Seconds on any one clock."""

    has_sent: bool = False
    held_since: float | None = None  # when the oldest token that waits came
    last_push: float | None = None
    gap: float = 0.0  # between the last two steps


class Pacer:
    """Decides for all streams of a sender.

    Args:
        max_delay_s: what a token may wait at most; 0: nothing waits.
    """

    def __init__(self, max_delay_s: float) -> None:
        self._max_delay_s = max_delay_s
        self._seconds_a_response = _TYPICAL_S

    def sent(self, pace: Pace, seconds: float) -> None:
        """A response of the stream went out and took so long."""
        pace.has_sent, pace.held_since = True, None
        self._seconds_a_response += _SMOOTHING * (min(seconds, _DEAREST_S) - self._seconds_a_response)

    def interval(self, num_streams: int, gap: float = 0.0) -> float:
        """Seconds that a token may wait.

        Args:
            gap: how long after it the next one comes.
        """
        longest = self._max_delay_s
        if gap > longest:
            longest = min(_LATE * gap, 2 * longest)
        return min(longest, num_streams * self._seconds_a_response / SHARE)

    def hold_until(self, pace: Pace, now: float, num_streams: int) -> float | None:
        """A token came now: until when it may wait, or None when it must be sent at once."""
        if pace.last_push is not None and now - pace.last_push > _ONE_STEP_S:
            pace.gap = now - pace.last_push
        pace.last_push = now
        if pace.held_since is None:
            since, deadline = now, now + self.interval(num_streams, pace.gap)
        else:
            since, deadline = pace.held_since, pace.held_since + self.interval(num_streams)
        if not pace.has_sent or now + pace.gap > deadline:
            return None
        pace.held_since = since
        return deadline
