"""When counts agree, and the sentence when they do not."""

import pytest
from trtdecode.loadtest.agreement import REQUESTS, TOKENS, PerfLimits, own_disagreements, perf_disagreements
from trtdecode.loadtest.server_metrics import Growth, Sample

OWN = {"ok": 20, "output_tokens": 1000, "tokens_counted": True, "cancelled": 0, "errors": {}}
PERF = {"requests": 100, "printed_requests": 100, "server_in_windows": 102, "responses": 4900, "requests_per_s": 10.0}


def growth(requests: float | None, tokens: float | None = None) -> Growth:
    counts = {REQUESTS: requests, TOKENS: tokens}
    samples = [Sample(name, {"model": "a"}, 7 + value) for name, value in counts.items() if value is not None]
    before = [Sample(name, {"model": "a"}, 7) for name in counts]
    return Growth(before, samples, "a")


def test_equal_counts_and_unknown_counters_agree() -> None:
    assert own_disagreements(OWN, growth(20, 1000)) == []
    assert own_disagreements(OWN, growth(20)) == []
    assert own_disagreements(OWN, growth(None)) == []
    assert own_disagreements({**OWN, "cancelled": 1}, growth(99, 99)) == []
    assert own_disagreements({**OWN, "tokens_counted": False}, growth(20, 1)) == []


@pytest.mark.parametrize(
    ("requests", "tokens", "name"), [(19, 1000, REQUESTS), (21, 1000, REQUESTS), (20, 999, TOKENS)]
)
def test_one_more_or_less_is_a_disagreement(requests: int, tokens: int, name: str) -> None:
    (found,) = own_disagreements(OWN, growth(requests, tokens))
    assert found.startswith(f"{name}: client counted")


@pytest.mark.parametrize(
    ("requests", "tokens", "expected"),
    [
        (100, 5000, ""),
        (117, 5850, ""),  # before and after its windows
        (99, 4950, "server counted 99, its profile holds 100"),
        (100, 4999, "should have made 5000"),
        (None, None, ""),
    ],
)
def test_perf_analyzers_profile(requests: int | None, tokens: int | None, expected: str) -> None:
    found = perf_disagreements(PERF, growth(requests, tokens), PerfLimits(4, 50))
    assert len(found) == bool(expected)
    assert expected in "".join(found)


@pytest.mark.parametrize(("counted", "holds"), [(113, True), (114, False), (87, True), (86, False), (None, True)])
def test_perf_analyzers_windows(counted: int | None, holds: bool) -> None:
    figures = {**PERF, "server_in_windows": counted}
    assert (perf_disagreements(figures, growth(None), PerfLimits(4, 50)) == []) == holds
    assert perf_disagreements(figures, growth(None), PerfLimits(None, 50)) == []


def test_its_summary_and_its_responses_are_checked_too() -> None:
    unknown = PerfLimits(4, None)
    (found,) = perf_disagreements({**PERF, "printed_requests": 101}, growth(100, 4900), unknown)
    assert found == "its summary says 101 requests, its profile holds 100"
    assert perf_disagreements({**PERF, "responses": 5000}, growth(100, 4900), unknown) == []
    (found,) = perf_disagreements({**PERF, "responses": 5001}, growth(100, 4900), unknown)
    assert "fewer than the profile's 5001 responses" in found
