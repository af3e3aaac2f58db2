"""`trtdecode loadtest` end to end: the real perf_analyzer, our client and a real server count the same requests."""

from __future__ import annotations

import base64
import json
import re
import shutil
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chain_model import cycle_text
from triton_fixtures import RunningServer
from trtdecode.cli import main
from trtdecode.loadtest.main import Plan, run_plan
from trtdecode.loadtest.records import Slo
from trtdecode.loadtest.traffic import Traffic, generate

pytestmark = pytest.mark.triton_server

ROOT = Path(__file__).resolve().parents[2]
TOOL_FOLDER = ROOT / ".cache" / "perf_analyzer"
REQUESTS, TOKENS = 20, 50


@pytest.fixture(scope="module")
def served(make_server: Callable[..., RunningServer], make_repository: Callable[..., Path]) -> Iterator[RunningServer]:
    """The chain model, and a plain Python model with the vLLM backend's tensors."""
    repository = make_repository({"chain": ""})
    (repository / "plain" / "1").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "plain_model.py", repository / "plain" / "1" / "model.py")
    (repository / "plain" / "config.pbtxt").write_text('backend: "python"\n')
    with make_server(repository) as server:
        yield server


@pytest.fixture
def loadtest(served: RunningServer, tmp_path: Path) -> Callable[..., tuple[int, dict, str]]:
    """Runs the command on small traffic; exit status, JSON and HTML."""

    def run(*arguments: str) -> tuple[int, dict, str]:
        files = ["--json", str(tmp_path / "report.json"), "--html", str(tmp_path / "report.html")]
        addresses = ["--grpc", served.grpc_address, "--metrics", f"http://{served.metrics_address}/metrics"]
        sizes = ["--requests", str(REQUESTS), "--output-tokens", str(TOKENS), "--prompt-words", "8"]
        status = main(["loadtest", *addresses, *sizes, *files, "--tool-folder", str(TOOL_FOLDER), *arguments])
        return status, json.loads((tmp_path / "report.json").read_text()), (tmp_path / "report.html").read_text()

    return run


def test_three_counts_agree_and_the_report_stands_alone(loadtest: Callable[..., tuple[int, dict, str]]) -> None:
    status, result, page = loadtest("chain", "--concurrency", "4", "--slo", "ttft_p95=60s,error_rate=0%")
    assert (status, result["disagreements"], result["slo_misses"]) == (0, [], [])
    assert re.fullmatch(r"\d+\.\d+\.\d+", result["perf_analyzer"])
    assert [(row["tool"], row["level"]) for row in result["levels"]] == [
        (tool, "4") for tool in ("tokens", "perf_analyzer")
    ]
    for row in result["levels"]:
        if row["tool"] == "tokens":
            assert (row["ok"], row["output_tokens"], row["errors"]) == (REQUESTS, REQUESTS * TOKENS, {})
        else:
            assert row["requests"] >= REQUESTS
            assert row["printed_requests"] == row["requests"]
            assert row["server_in_windows"] > 0
            assert row["requests"] < row["responses"] <= row["requests"] * (TOKENS + 1)
            assert 0 < row["ttft_p50"] < row["e2e_p50"]

    assert "SLO kept; the clients' counts agree with the server's." in page
    links = re.findall(r"""(?:src|href|action)=["']?([^"'>]*)""", page) + re.findall(r"url\(|@import", page)
    images = [link.removeprefix("data:image/svg+xml;base64,") for link in links]
    assert not [link for link in images if ":" in link]  # all of it is in the file
    titles = re.findall("<figcaption>(.*?)</figcaption>", page)
    assert titles == [
        *(f"{name} over load" for name in ("Time to first token", "Inter-token latency", "End to end")),
        "Throughput and latency",
        "Server at load 4",
    ]
    assert len(images) == len(titles)
    for image in images:
        drawing = ElementTree.fromstring(base64.b64decode(image))
        lines = [element for element in drawing.iter() if element.get("id", "").startswith("line2d")]
        assert len(lines) > 5  # grid and curves


def test_an_slo_that_is_missed_is_the_exit_status(
    loadtest: Callable[..., tuple[int, dict, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, result, page = loadtest("chain", "--concurrency", "2", "--no-perf-analyzer", "--slo", "ttft_p50=0.001ms")
    assert status == 1
    (miss,) = result["slo_misses"]
    assert re.fullmatch(r"load 2: ttft_p50 is [0-9.e-]+, limit 1e-06", miss)
    assert f'<li class="bad">{miss}</li>' in page
    assert miss in capsys.readouterr().err


def test_an_open_loop_runs_in_both_tools(loadtest: Callable[..., tuple[int, dict, str]]) -> None:
    status, result, _ = loadtest("chain", "--rate", "50", "--burst", "0.3", "--poisson", "--output-tokens", "10")
    assert (status, result["disagreements"]) == (0, [])
    own, tool = result["levels"]
    assert own["ok"] == REQUESTS
    assert own["duration_s"] > 0.2  # 20 requests at 50 to 65 a second
    assert tool["requests"] >= REQUESTS


def test_somebody_elses_requests_are_a_loud_disagreement(served: RunningServer) -> None:
    """The server counts what another client sends meanwhile; neither tool can know of it."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            assert served.greedy("chain", max_tokens=5) == cycle_text(5)

    plan = Plan(
        url=served.grpc_address,
        metrics_url=f"http://{served.metrics_address}/metrics",
        model="chain",
        levels=(1.0,),
        open_loop=False,
        slo=Slo({}),
        tool_folder=TOOL_FOLDER,
        perf_requests=REQUESTS,
    )
    other = threading.Thread(target=ask)
    other.start()
    try:
        outcome = run_plan(plan, lambda level: generate(Traffic(num_requests=REQUESTS, output_tokens=TOKENS)))
    finally:
        stop.set()
        other.join()
    assert not outcome.passed
    found = "\n".join(outcome.result["disagreements"])
    assert re.search(rf"^load 1: nv_inference_request_success: client counted {REQUESTS}, server \d+; is", found)
    assert f"load 1: trtdecode_generation_tokens_total: client counted {REQUESTS * TOKENS}, server" in found
    assert re.search(r"load 1, perf_analyzer: server counted \d+ requests in its windows, expected", found)


def test_a_plain_python_model_with_vllms_tensors(loadtest: Callable[..., tuple[int, dict, str]]) -> None:
    status, result, page = loadtest("plain", "--concurrency", "2")
    assert (status, result["disagreements"]) == (0, [])
    own, tool = result["levels"]
    assert (own["ok"], own["chunks"], own["tokens_counted"]) == (REQUESTS, REQUESTS * TOKENS, False)
    assert tool["requests"] >= REQUESTS
    assert tool["responses"] == tool["requests"] * (TOKENS + 1)  # the empty last one too
    assert "does not report token counts" in page
