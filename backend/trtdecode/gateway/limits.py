"""Who may ask, and how much: API keys, a rate and a concurrency limit for each key."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass

from trtdecode.gateway.errors import GatewayError

ANONYMOUS = "anonymous"


class KeyRing:
    """Checks bearer tokens in a time that does not depend on where they differ, nor on which key matches."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def identify(self, authorization: str | None) -> str:
        """The caller's name for limits and logs: a few digits of the key's digest, never the key.

        Raises:
            GatewayError: 401 when keys are configured and none was given or none matches.
        """
        if not self._digests:
            return ANONYMOUS
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise GatewayError(401, "no API key: send the header `Authorization: Bearer KEY`", code="missing_api_key")
        given = hashlib.sha256(token.strip().encode()).digest()
        # Every key is compared, whatever the earlier ones said.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        if not any(matches):
            raise GatewayError(401, "the API key is not known", code="invalid_api_key")
        return given.hex()[:12]


@dataclass(slots=True)
class _Usage:
    tokens: float
    refilled_at: float
    running: int = 0


class CallerLimits:
    """A token bucket and a running count for each caller. Single-threaded: lives on the event loop."""

    def __init__(
        self, requests_per_minute: int, max_concurrency: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = requests_per_minute / 60
        self._burst = float(requests_per_minute)
        self._max_concurrency = max_concurrency
        self._clock = clock
        self._usage: dict[str, _Usage] = {}

    def enter(self, caller: str) -> None:
        """Counts a request in; pair with `leave`.

        Raises:
            GatewayError: 429 with Retry-After; nothing was counted.
        """
        now = self._clock()
        usage = self._usage.setdefault(caller, _Usage(self._burst, now))
        self._refill(usage, now)
        if self._rate and usage.tokens < 1:
            wait = max(1, round((1 - usage.tokens) / self._rate))
            limit = f"{self._burst:g} requests a minute"
            raise GatewayError(429, f"rate limit of {limit} reached; retry in {wait} s", retry_after=wait)
        if self._max_concurrency and usage.running >= self._max_concurrency:
            limit = f"{self._max_concurrency} requests at a time"
            raise GatewayError(429, f"limit of {limit} reached; wait for one to end", retry_after=1)
        usage.tokens -= 1 if self._rate else 0
        usage.running += 1

    def leave(self, caller: str) -> None:
        """Counts a request out. A caller with a full bucket and nothing running is forgotten."""
        usage = self._usage[caller]
        usage.running -= 1
        self._refill(usage, self._clock())
        if not usage.running and usage.tokens >= self._burst:
            del self._usage[caller]

    def _refill(self, usage: _Usage, now: float) -> None:
        usage.tokens = min(self._burst, usage.tokens + (now - usage.refilled_at) * self._rate)
        usage.refilled_at = now
