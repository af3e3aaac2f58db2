"""Prometheus text and the comparison of counts."""

from trtdecode.loadtest.server_metrics import compare, parse, total

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


def test_a_difference_is_a_disagreement_and_an_unknown_counter_is_not() -> None:
    found = compare(parse(BEFORE), parse(AFTER), "a", {"nv_inference_request_success": 10, "other": 5})
    assert [(one.server, one.holds) for one in found] == [(10.0, True), (None, True)]
    assert not compare(parse(BEFORE), parse(AFTER), "a", {"nv_inference_request_success": 9})[0].holds


def test_a_counter_that_appears_during_the_run_starts_at_zero() -> None:
    assert compare([], parse(AFTER), "a", {"nv_inference_request_success": 14})[0].holds
