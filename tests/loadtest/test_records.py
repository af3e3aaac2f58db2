"""Figures by hand."""

import math

import pytest
from trtdecode.errors import ConfigError
from trtdecode.loadtest.records import Record, Slo, summarise


def record(ttft: float, gaps: list[float], tokens: int | None = None, **more) -> Record:
    times = [10.0 + ttft]
    for gap in gaps:
        times.append(times[-1] + gap)
    return Record(10.0, times, tokens or len(times), ended_at=times[-1], **more)


def test_itl_divides_by_tokens_not_by_chunks() -> None:
    # Three chunks carry nine tokens: eight gaps between tokens.
    assert record(0.1, [0.4, 0.4], tokens=9).itl == pytest.approx(0.1)
    assert math.isnan(record(0.1, []).itl)


def test_figures_of_a_level() -> None:
    records = [record(0.1, [0.05] * 4), record(0.3, [0.05] * 4), record(0.2, [], error="UNAVAILABLE: full")]
    records.append(record(0.1, [0.1], cancelled=True))
    figures = summarise(records, 2.0, Slo.parse("ttft_p95=200ms"))
    assert (figures["requests"], figures["ok"], figures["cancelled"]) == (4, 2, 1)
    assert figures["errors"] == {"UNAVAILABLE: full": 1}
    assert figures["error_rate"] == pytest.approx(1 / 3)
    assert figures["ttft_p50"] == pytest.approx(0.2)
    assert figures["itl_p99"] == pytest.approx(0.05)
    assert figures["output_tokens"] == 5 + 5 + 1 + 2
    assert figures["goodput_per_s"] == pytest.approx(0.5)  # one request of four within 200 ms, over two seconds


def test_misses_name_figure_and_limit_and_absence_is_a_miss() -> None:
    slo = Slo.parse("ttft_p95=500ms, itl_p95=50ms,error_rate=1%")
    assert slo.limits == {"ttft_p95": 0.5, "itl_p95": 0.05, "error_rate": 0.01}
    figures = {"ttft_p95": 0.6, "itl_p95": None, "error_rate": 0.0}
    assert slo.misses(figures) == ["ttft_p95 is 0.6, limit 0.5", "itl_p95 is None, limit 0.05"]
    assert slo.misses({"ttft_p95": math.nan, "itl_p95": 0.01, "error_rate": 0}) == ["ttft_p95 is nan, limit 0.5"]


@pytest.mark.parametrize("text", ["ttft=1s", "ttft_p95=500", "ttft_p90=1s", "error_rate=1s", "e2e_p99=5%", "nonsense"])
def test_a_wrong_slo_is_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match="slo: got"):
        Slo.parse(text)
