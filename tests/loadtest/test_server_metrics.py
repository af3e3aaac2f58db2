"""Prometheus text, and what counters gained."""

from trtdecode.loadtest.server_metrics import Growth, parse, total

BEFORE = """# HELP nv_inference_request_success Number of successful inference requests
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="a",version="1"} 3
nv_inference_request_success{model="a",version="2"} 1
nv_inference_request_success{model="b \\"q\\"",version="1"} 100
up 1e0
"""
AFTER = BEFORE.replace('version="2"} 1', 'version="2"} 11')


def test_counts_are_summed_over_versions_of_one_model() -> None:
    assert total(parse(BEFORE), "nv_inference_request_success", "a") == 4
    assert total(parse(BEFORE), "nv_inference_request_success", 'b \\"q\\"') == 100
    assert total(parse(BEFORE), "up", "a") is None


def test_growth_of_a_counter_that_appears_in_between_starts_at_zero() -> None:
    growth = Growth(parse(BEFORE), parse(AFTER), "a")
    assert growth.of("nv_inference_request_success") == 10
    assert growth.of("other") is None
    assert Growth([], parse(AFTER), "a").of("nv_inference_request_success") == 14
