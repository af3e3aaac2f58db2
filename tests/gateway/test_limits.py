"""Keys and limits, on a clock that only moves when told."""

import pytest
from trtdecode.gateway.errors import GatewayError
from trtdecode.gateway.limits import ANONYMOUS, CallerLimits, KeyRing

KEY, OTHER = "k" * 32, "o" * 32


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_keys_everybody_is_anonymous() -> None:
    assert KeyRing(()).identify(None) == ANONYMOUS


def test_a_caller_is_named_by_a_digest_not_by_the_key() -> None:
    ring = KeyRing((KEY, OTHER))
    assert ring.identify(f"Bearer {KEY}") == ring.identify(f"bearer  {KEY} ")
    assert ring.identify(f"Bearer {KEY}") != ring.identify(f"Bearer {OTHER}")
    assert KEY[:12] not in ring.identify(f"Bearer {KEY}")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}"]
)
def test_everything_else_is_401(header: str | None) -> None:
    with pytest.raises(GatewayError) as caught:
        KeyRing((KEY,)).identify(header)
    assert caught.value.status == 401


def test_the_rate_refills_with_time_and_says_when_to_retry() -> None:
    clock = Clock()
    limits = CallerLimits(requests_per_minute=6, max_concurrency=0, clock=clock)
    for _ in range(6):
        limits.enter("a")
        limits.leave("a")
    with pytest.raises(GatewayError) as caught:
        limits.enter("a")
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "10"})
    limits.enter("b")  # another caller has a bucket of its own
    clock.now = 10.0
    limits.enter("a")
    with pytest.raises(GatewayError):
        limits.enter("a")


def test_concurrency_is_freed_by_leaving() -> None:
    limits = CallerLimits(requests_per_minute=0, max_concurrency=2)
    limits.enter("a")
    limits.enter("a")
    with pytest.raises(GatewayError, match="2 requests at a time"):
        limits.enter("a")
    limits.leave("a")
    limits.enter("a")


def test_idle_callers_are_forgotten() -> None:
    clock = Clock()
    limits = CallerLimits(requests_per_minute=60, max_concurrency=1, clock=clock)
    for number in range(1000):
        limits.enter(str(number))
        clock.now += 1.0
        limits.leave(str(number))
    assert not limits._usage
