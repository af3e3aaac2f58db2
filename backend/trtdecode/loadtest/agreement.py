"""Do the counts of the clients and of the server agree? A load test whose counts do not is not worth reading.

Each function gives one sentence a disagreement. Counters that the server does not have (another backend) are None and
compared with nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtdecode.loadtest.server_metrics import Growth

REQUESTS = "nv_inference_request_success"
TOKENS = "trtdecode_generation_tokens_total"


def own_disagreements(figures: dict[str, Any], growth: Growth) -> list[str]:
    """Our client saw every request and every token: the counts must be equal.

    A cancelled or failed request may have produced tokens that nobody read, so levels with any are not compared.
    """
    if figures["cancelled"] or figures["errors"]:
        return []
    counts = {REQUESTS: figures["ok"]}
    if figures["tokens_counted"]:
        counts[TOKENS] = figures["output_tokens"]
    seen = {name: growth.of(name) for name in counts}
    return [
        f"{name}: client counted {counts[name]:g}, server {value:g}; is the model used elsewhere?"
        for name, value in seen.items()
        if value is not None and value != counts[name]
    ]


#: Seconds that may pass between the edge of perf_analyzer's windows and its reading of the server's statistics.
EDGE_S = 0.5


@dataclass(frozen=True, slots=True)
class PerfLimits:
    """What is known of a perf_analyzer run beforehand."""

    concurrency: int | None  # None: open loop, any number may be under way when a window closes
    tokens_each: int | None  # of every request, where all have the same number; else None


def perf_disagreements(figures: dict[str, Any], growth: Growth, limits: PerfLimits) -> list[str]:
    """perf_analyzer's profile holds the requests that ended inside its windows; it sends more before and after. So the
    counters of the whole run are at least the profile's, and tokens are those of the server's own requests; the
    statistics that perf_analyzer reads from the server at its windows' edges are the profile's but for what is under
    way at an edge."""
    found = []
    profile, printed, in_windows = (figures[name] for name in ("requests", "printed_requests", "server_in_windows"))
    if printed is not None and printed != profile:
        found.append(f"its summary says {printed} requests, its profile holds {profile}")
    if in_windows is not None and limits.concurrency is not None:
        margin = 2 * limits.concurrency + int(EDGE_S * figures["requests_per_s"])
        if abs(in_windows - profile) > margin:
            counted = f"server counted {in_windows} requests in its windows"
            found.append(f"{counted}, expected {profile} +- {margin}; is the model used elsewhere?")
    requests, tokens = growth.of(REQUESTS), growth.of(TOKENS)
    if requests is None:
        return found
    if requests < profile:
        found.append(f"{REQUESTS}: server counted {requests:g}, its profile holds {profile}")
    if tokens is not None and limits.tokens_each is not None and tokens != requests * limits.tokens_each:
        expected = f"{requests * limits.tokens_each:g}"
        found.append(f"{TOKENS}: server counted {tokens:g}, its {requests:g} requests should have made {expected}")
    if tokens is not None and figures["responses"] > tokens + requests:  # an empty last one each
        found.append(f"{TOKENS}: server counted {tokens:g}, fewer than the profile's {figures['responses']} responses")
    return found
