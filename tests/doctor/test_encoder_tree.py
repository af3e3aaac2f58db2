"""The encoders' tree on recordings of MiniLM on a CPU under known loads, and on figures made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from trtdecode.doctor.finding import Limits
from trtdecode.doctor.readings import Readings, Scrape, models, read_recording, scrapes_of
from trtdecode.doctor.tree import diagnose
from trtdecode.loadtest.server_metrics import Sample

RECORDED = Path(__file__).with_name("recorded")


@pytest.mark.parametrize(
    ("recording", "model", "bottleneck", "evidence"),
    [
        # 16 clients with 32 tokens each, as imported.
        ("encoder_many_clients", "default", "compute", "the executor is busy 89% of the time: 263 tokens a run"),
        # 16 clients with 16 tokens each; max_batch_size 1 and 4.
        ("encoder_batch_of_one", "single", "batch size", "a batch has 1.0 texts and takes 26.2 ms"),
        ("encoder_batch_of_four", "small", "batch size", "a batch has 4.0 texts and takes 61.2 ms"),
        # 4 clients, preferred_batch_size 32, max_queue_delay_microseconds 200,000.
        ("encoder_delay", "delayed", "delay", "requests wait 199.4 ms, and the instance works 11% of the time"),
        ("encoder_one_client", "default", "compute", "the executor is busy 72% of the time: 8 tokens a run"),
    ],
)
def test_recorded_servers(recording: str, model: str, bottleneck: str, evidence: str) -> None:
    scrapes = scrapes_of(read_recording(RECORDED / f"{recording}.json"))
    assert models(scrapes[-1]) == [model]
    finding = diagnose(Readings(scrapes, model))
    assert (finding.bottleneck, finding.also) == (bottleneck, [])
    assert finding.evidence[0].startswith(evidence)


BUSY = {
    "trtdecode_steps_total": 500.0,
    "trtdecode_step_failures_total": 0.0,
    "trtdecode_step_tokens_sum": 64_000.0,
    "trtdecode_step_tokens_count": 500.0,
    "trtdecode_execute_seconds_sum": 9.0,
    "trtdecode_execute_seconds_count": 500.0,
    "nv_inference_request_success": 4000.0,
    "nv_inference_count": 4000.0,
    "nv_inference_exec_count": 500.0,
    "nv_inference_queue_duration_us": 4000 * 10_000.0,
    "nv_inference_compute_infer_duration_us": 4000 * 19_000.0,
    "nv_inference_pending_request_count": 4.0,
}


def readings(*log_lines: str, **after: float) -> Readings:
    """Ten seconds of batches of 8 texts and 128 tokens, 19 ms each, but for what is given."""
    last = BUSY | after
    first = {name: value if name.endswith("pending_request_count") else 0.0 for name, value in last.items()}

    def scrape(at: float, values: dict[str, float]) -> Scrape:
        return Scrape(at, [Sample(name, {"model": "m"}, value) for name, value in values.items()])

    return Readings([scrape(0.0, first), scrape(10.0, last)], "m", log_lines)


def waits(milliseconds: float) -> dict[str, float]:
    return {"nv_inference_queue_duration_us": 4000 * milliseconds * 1000}


@pytest.mark.parametrize(
    ("figures", "bottleneck"),
    [
        ({}, "compute"),
        (waits(22.0), "compute"),  # 1.16 times a batch
        (waits(23.0), "batch size"),  # 1.21 times
        (waits(23.0) | {"trtdecode_step_tokens_sum": 128_000.0}, "compute"),  # 256 tokens a run: full already
        ({"trtdecode_execute_seconds_sum": 6.6}, "host"),
        ({"trtdecode_execute_seconds_sum": 6.7}, "compute"),
        ({"nv_inference_exec_count": 300.0} | waits(9.0), "host"),  # works 57 % of the time; hardly anyone waits
        ({"nv_inference_exec_count": 300.0} | waits(10.0), "delay"),  # half a batch's time
        ({"nv_inference_exec_count": 200.0} | waits(1.0), "idle"),
        ({"trtdecode_step_failures_total": 1.0}, "faults"),
    ],
)
def test_where_a_yes_begins(figures: dict[str, float], bottleneck: str) -> None:
    if "nv_inference_exec_count" in figures and bottleneck == "host":
        figures = figures | {"trtdecode_execute_seconds_sum": 3.9}
    assert diagnose(readings(**figures)).bottleneck == bottleneck


def test_nothing_to_do_and_nothing_coming_out() -> None:
    nothing = dict.fromkeys(BUSY, 0.0)
    assert diagnose(readings(**nothing)).bottleneck == "idle"
    finding = diagnose(readings(**nothing | {"nv_inference_pending_request_count": 3.0}))
    assert (finding.bottleneck, finding.evidence) == (
        "stalled",
        ["3.0 requests wait on average, and none was answered in 10.0 s"],
    )


def test_batches_of_one_ask_for_company() -> None:
    alone = {"nv_inference_exec_count": 4000.0, "nv_inference_compute_infer_duration_us": 4000 * 2_400.0} | waits(0.1)
    assert diagnose(readings(**alone)).next_step.startswith("send more requests at a time")
    assert diagnose(readings()).next_step.startswith("shorten or truncate texts")


LOADED = (
    'I1130 triton_encoder.py:80] "m: a/model loaded in 7.6 s; max_batch_size {size}, dynamic_batching '
    "{{'preferred_batch_size': [4], 'max_queue_delay_microseconds': {delay}, 'priority_queue_policy': {{}}}}, "
    'parameters ServingConfig()"'
)


def test_the_log_tells_a_delay_from_bursts() -> None:
    """An instance that works 19 % of the time and requests that wait: by order, or because they all come at once."""
    figures = {"nv_inference_exec_count": 100.0} | waits(30.0)
    finding = diagnose(readings(LOADED.format(size=4, delay=0), LOADED.format(size=32, delay=5000), **figures))
    assert finding.bottleneck == "delay"
    assert finding.evidence[-1] == "the log says max_batch_size 32, max_queue_delay_microseconds 5000"
    finding = diagnose(readings(LOADED.format(size=4, delay=0), **figures))
    assert finding.bottleneck == "batch size"
    assert finding.evidence[-1] == "the log says max_batch_size 4, max_queue_delay_microseconds 0"
    assert diagnose(readings(LOADED.format(size=4, delay=0).replace("m: a", "n: a"), **figures)).bottleneck == "delay"


def test_limits_can_be_moved() -> None:
    assert diagnose(readings(**waits(23.0)), Limits(batch_waits=1.5)).bottleneck == "compute"
