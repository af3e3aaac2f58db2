"""The tree on recordings of real servers (a CPU machine, `trtdecode doctor --record`), and on figures made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trtdecode.cli import main
from trtdecode.doctor.finding import Limits
from trtdecode.doctor.readings import Readings, Scrape, read_recording, scrapes_of
from trtdecode.doctor.tree import diagnose
from trtdecode.errors import ConfigError
from trtdecode.loadtest.server_metrics import Sample

RECORDED = Path(__file__).with_name("recorded")


@pytest.mark.parametrize(
    ("recording", "model", "bottleneck", "evidence"),
    [
        ("one_stream", "smollm2", "memory bandwidth", "a step has 1.0 tokens and takes the executor 86.4 ms"),
        ("long_prompts", "smollm2", "compute", "a step has 512.0 tokens and takes the executor 3075.5 ms"),
        ("without_overlap", "chain", "host", "requests ran 100% of the time, the executor 61%"),
        ("short_requests", "chain", "idle", "requests ran at 0% of the scrapes, the executor was busy 3% of the time"),
        ("short_requests", "smollm2", "idle", "no request ran or waited in 4.0 s"),
    ],
)
def test_recorded_servers(recording: str, model: str, bottleneck: str, evidence: str) -> None:
    scrapes = scrapes_of(read_recording(RECORDED / f"{recording}.json"))
    finding = diagnose(Readings(scrapes, model))
    assert finding.bottleneck == bottleneck
    assert finding.evidence[0].startswith(evidence)


def readings(*, log_lines: tuple[str, ...] = (), before: dict[str, float] | None = None, **after: float) -> Readings:
    """Ten seconds of a server that decodes eight sequences at full speed, but for what is given."""
    busy = {
        "trtdecode_requests_running": 8.0,
        "trtdecode_requests_waiting": 0.0,
        "trtdecode_kv_blocks_total": 100.0,
        "trtdecode_kv_blocks_used": 40.0,
        "trtdecode_generation_tokens_total": 8000.0,
        "trtdecode_steps_total": 1000.0,
        "trtdecode_step_tokens_sum": 8000.0,
        "trtdecode_step_tokens_count": 1000.0,
        "trtdecode_execute_seconds_sum": 9.5,
        "trtdecode_execute_seconds_count": 1000.0,
        "nv_inference_request_success": 100.0,
    }
    last = busy | after
    gauges = ("trtdecode_requests_running", "trtdecode_requests_waiting", "trtdecode_kv_blocks_", "nv_cpu", "DCGM")
    first = {name: value if name.startswith(gauges) else 0.0 for name, value in last.items()} | (before or {})

    def samples(values: dict[str, float]) -> list[Sample]:
        found = []
        for name, value in values.items():
            name, _, error = name.partition(":")
            labels = (
                {} if name.startswith(("DCGM", "nv_cpu")) else {"model": "m", **({"error": error} if error else {})}
            )
            found.append(Sample(name, labels, value))
        return found

    return Readings([Scrape(0.0, samples(first)), Scrape(10.0, samples(last))], "m", log_lines)


def test_few_tokens_a_step_are_bandwidth_and_many_are_compute() -> None:
    assert diagnose(readings()).bottleneck == "memory bandwidth"
    assert diagnose(readings(), Limits(ridge_tokens=8)).bottleneck == "compute"


def test_a_gpus_own_counters_decide_where_they_are_there() -> None:
    gpu = {"DCGM_FI_PROF_DRAM_ACTIVE": 0.3, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.6}
    finding = diagnose(readings(**gpu))
    assert finding.bottleneck == "compute"
    assert "tensor cores are 60% active, its memory 30%" in finding.evidence[1]


def test_a_queue_with_small_steps_is_a_limit_and_with_full_steps_a_symptom() -> None:
    queued = {"trtdecode_requests_waiting": 5.0}
    finding = diagnose(readings(**queued))
    assert (finding.bottleneck, "raise max_num_seqs" in finding.next_step) == ("queue", True)
    full = {**queued, "trtdecode_step_tokens_sum": 512_000.0}
    finding = diagnose(readings(**full))
    assert finding.bottleneck == "compute"
    assert "5.0 requests wait on average" in finding.evidence[1]
    assert diagnose(readings(**queued, trtdecode_execute_seconds_sum=3.0)).bottleneck == "queue"
    assert diagnose(readings(**full, trtdecode_execute_seconds_sum=3.0)).bottleneck == "host"


def test_refusals_of_a_full_queue_count_as_one() -> None:
    finding = diagnose(readings(**{"trtdecode_requests_refused_total:QueueFull": 12.0}))
    assert finding.bottleneck == "queue"
    assert "12 requests were refused" in finding.evidence[-1]
    assert diagnose(readings(**{"trtdecode_requests_refused_total:InvalidRequest": 9.0})).bottleneck != "queue"


def test_tritons_own_queue_is_told_from_ours() -> None:
    finding = diagnose(readings(nv_inference_queue_duration_us=100 * 250_000.0))
    assert finding.bottleneck == "queue"
    assert finding.evidence == ["Triton held each request 250 ms before the backend saw it"]
    assert diagnose(readings(nv_inference_queue_duration_us=100 * 2_000.0)).bottleneck == "memory bandwidth"


@pytest.mark.parametrize(
    ("figures", "bottleneck"),
    [
        ({"trtdecode_preemptions_total": 3.0}, "kv"),
        ({"trtdecode_kv_blocks_used": 95.0, "trtdecode_requests_waiting": 1.0}, "kv"),
        ({"trtdecode_kv_blocks_used": 95.0}, "memory bandwidth"),  # full and nobody waits: well used
        ({"trtdecode_execute_seconds_sum": 6.9}, "host"),
        ({"trtdecode_execute_seconds_sum": 7.0}, "memory bandwidth"),
        ({"trtdecode_generation_tokens_total": 0.0, "trtdecode_steps_total": 0.0}, "stalled"),
        ({"trtdecode_step_failures_total": 1.0, "trtdecode_preemptions_total": 3.0}, "faults"),
    ],
)
def test_where_a_yes_begins(figures: dict[str, float], bottleneck: str) -> None:
    assert diagnose(readings(**figures)).bottleneck == bottleneck


def test_faults_of_the_past_and_signs_in_the_log_go_along() -> None:
    past = {"trtdecode_server_restarts_total": 2.0}
    lines = ("I1129 fine", "W1129 m: dynamic_batching has a queue policy: ...", "E: No space left on device (28)")
    finding = diagnose(readings(before=past, log_lines=lines, **past))
    assert finding.bottleneck == "memory bandwidth"
    assert finding.also[0] == "2 restarts of the server since the load"
    assert "/dev/shm is too small" in finding.also[1] and "shm_size" in finding.also[1]
    assert "polls of up to 500 ms" in finding.also[2]


def test_the_command_on_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(RECORDED / "long_prompts.json")
    assert main(["doctor", "smollm2", "--recording", file, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["bottleneck"], answer["also"]) == ("smollm2", "compute", [])
    assert main(["doctor", "smollm2", "--recording", file, "--device", "H100-SXM", "--precision", "fp16"]) == 0
    assert "below about 295 tokens" in capsys.readouterr().out
    assert main(["doctor", "absent", "--recording", file]) == 1
    assert "no metrics of absent; there are chain, smollm2" in capsys.readouterr().err
    assert main(["doctor", "--metrics", "http://127.0.0.1:1/metrics", "--seconds", "0.1"]) == 1
    assert "http://127.0.0.1:1/metrics does not answer" in capsys.readouterr().err


def test_a_recording_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ConfigError, match="at least two"):
        Readings(scrapes_of(read_recording(tmp_path / "x.json")), "m")
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"x\.json: not readable"):
        read_recording(tmp_path / "x.json")
