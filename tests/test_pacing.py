"""When a token waits, in made-up time."""

from __future__ import annotations

import pytest
from trtdecode.pacing import SHARE, Pace, Pacer


def started(pacer: Pacer, gap: float, seconds: float = 0.001) -> Pace:
    """A stream that was sent two tokens, `gap` apart; the second at time 0. A response takes `seconds` on average."""
    pace = Pace()
    for _ in range(1000):
        pacer.sent(Pace(), seconds)
    for now in (-gap, 0.0):
        assert pacer.hold_until(pace, now, 1) is None
        pacer.sent(pace, seconds)
    return pace


@pytest.mark.parametrize(
    ("num_streams", "interval"),
    [(1, 0.001 / SHARE), (2, 0.002 / SHARE), (4, 0.05), (1000, 0.05)],  # 1 ms a response; bounded by the delay
)
def test_the_interval_grows_with_what_sending_costs(num_streams: int, interval: float) -> None:
    pacer = Pacer(0.05)
    started(pacer, 0.02)
    assert pacer.interval(num_streams) == pytest.approx(interval)


def test_the_mean_follows_the_cost() -> None:
    pacer = Pacer(1.0)
    pace = started(pacer, 0.02, 0.001)
    for _ in range(500):
        pacer.sent(pace, 0.002)
    assert pacer.interval(1) == pytest.approx(0.002 / SHARE, rel=1e-3)


def test_a_slow_first_response_does_not_make_one_stream_wait() -> None:
    """After a load the first response may take half a second."""
    pacer, pace = Pacer(0.05), Pace()
    assert pacer.hold_until(pace, 0.0, 1) is None
    pacer.sent(pace, 0.5)
    for step in range(1, 20):
        assert pacer.hold_until(pace, 0.012 * step, 1) is None
        pacer.sent(pace, 0.0002)


def test_tokens_are_sent_in_pairs_when_two_fit_into_the_interval() -> None:
    pacer = Pacer(0.05)
    pace = started(pacer, 0.03)
    assert pacer.hold_until(pace, 0.03, 32) == pytest.approx(0.08)  # the next one comes at 0.06
    assert pacer.hold_until(pace, 0.06, 32) is None  # one at 0.09 would be too late for the first
    pacer.sent(pace, 0.001)
    assert pacer.hold_until(pace, 0.09, 32) == pytest.approx(0.14)


def test_one_stream_never_waits_for_a_slow_step() -> None:
    pacer = Pacer(0.05)
    pace = started(pacer, 0.02)
    for step in range(1, 10):
        assert pacer.hold_until(pace, 0.02 * step, 1) is None  # 17 ms at 1 ms a response
        pacer.sent(pace, 0.001)


def test_slow_steps_are_sent_in_pairs() -> None:
    """A successor that comes after the delay is waited for all the same, if sending costs too much: once."""
    pacer = Pacer(0.05)
    pace = started(pacer, 0.06)
    assert pacer.hold_until(pace, 0.06, 64) == pytest.approx(0.06 + 1.25 * 0.06)
    assert pacer.hold_until(pace, 0.12, 64) is None
    pacer.sent(pace, 0.001)
    assert pacer.hold_until(pace, 0.18, 3) is None  # 3 streams at 1 ms a response: less than the share of 60 ms


def test_nothing_waits_for_a_successor_beyond_twice_the_delay() -> None:
    pacer = Pacer(0.05)
    pace = started(pacer, 0.11)
    assert pacer.hold_until(pace, 0.11, 64) is None


def test_samples_of_one_step_are_no_gap() -> None:
    pacer = Pacer(0.05)
    pace = started(pacer, 0.11)
    assert pacer.hold_until(pace, 0.11, 64) is None
    assert pacer.hold_until(pace, 0.1101, 64) is None  # the second sample's token; the next step comes at 0.22
    assert pace.gap == pytest.approx(0.11)


def test_off() -> None:
    pacer = Pacer(0.0)
    pace = started(pacer, 0.001)
    assert pacer.hold_until(pace, 0.001, 1000) is None


def test_the_first_token_never_waits() -> None:
    pacer = Pacer(0.05)
    started(pacer, 0.02)  # the mean is known
    pace = Pace()
    assert pacer.hold_until(pace, 10.0, 1000) is None
    assert pacer.hold_until(pace, 10.001, 1000) is None  # still being sent
    pacer.sent(pace, 0.001)
    assert pacer.hold_until(pace, 10.002, 1000) == pytest.approx(10.052)
