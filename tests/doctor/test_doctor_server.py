"""`trtdecode doctor` beside real servers in known states: idle, a queue, too few KV blocks, encoders' batches."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from triton_fixtures import RunningServer, metric, wait_for
from trtbuild.pipeline import import_checkpoint
from trtdecode.cli import main

pytestmark = pytest.mark.triton_server

LONG = {"temperature": 0.0, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def served(
    make_server: Callable[..., RunningServer], make_repository: Callable[..., object], endless_version: object
) -> Iterator[RunningServer]:
    """`queued` runs one request at a time; `small` has 40 KV blocks; `spare` gets no request."""
    one = 'parameters { key: "max_num_seqs" value { string_value: "1" } }'
    pool = 'parameters { key: "kv_cache_bytes" value { string_value: "1MiB" } }'
    with make_server(make_repository({"queued": one, "small": pool, "spare": ""}, queued=endless_version)) as server:
        yield server


@contextmanager
def streams(server: RunningServer, model: str, count: int, max_tokens: int) -> Iterator[None]:
    """So many clients, each asking again when its answer has ended."""
    stop = threading.Event()

    def ask(number: int) -> None:
        while not stop.is_set():
            body = {"text_input": f"{number} " * 8, "max_tokens": max_tokens, **LONG}
            for _ in server.client.generate_stream(model, body):
                if stop.is_set():
                    return

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def ask_doctor(server: RunningServer, model: str, capsys: pytest.CaptureFixture[str]) -> dict:
    capsys.readouterr()
    options = ["--metrics", f"http://{server.metrics_address}/metrics", "--log", str(server.log_path)]
    assert main(["doctor", model, *options, "--seconds", "2", "--interval", "0.25", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_idle_server(served: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_doctor(served, "spare", capsys)
    assert (answer["bottleneck"], answer["also"]) == ("idle", [])


def test_a_batch_of_one_with_four_clients(served: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    with streams(served, "queued", 4, 100_000):
        wait_for(lambda: metric(served, "trtdecode_requests_waiting", "queued") == 3, what="three wait")
        answer = ask_doctor(served, "queued", capsys)
    assert answer["bottleneck"] == "queue"
    assert answer["evidence"][0] == "3.0 requests wait on average"
    assert answer["evidence"][1] == "1.0 run, and KV blocks are left"
    assert "raise max_num_seqs: a step has 1.0 tokens" in answer["next_step"]


def test_sequences_that_outgrow_the_pool(served: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    total = metric(served, "trtdecode_kv_blocks_total", "small")
    with streams(served, "small", 4, int(total * 32 * 0.6)):
        wait_for(lambda: metric(served, "trtdecode_preemptions_total", "small") > 0, 30, "a preemption")
        for _ in range(10):  # on a slow machine two seconds may pass without a preemption
            answer = ask_doctor(served, "small", capsys)
            if answer["bottleneck"] == "kv":
                break
    assert answer["bottleneck"] == "kv"
    assert "raise kv_cache_bytes" in answer["next_step"]


@pytest.fixture(scope="module")
def encoders(
    make_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path
) -> Iterator[RunningServer]:
    """MiniLM three times: `one` runs a text at a time, `delayed` waits for 32 of them, `spare` gets no request."""
    repository = tmp_path_factory.mktemp("encoders")
    delay = "dynamic_batching { preferred_batch_size: [ 32 ] max_queue_delay_microseconds: 200000 }"
    version = import_checkpoint(minilm_folder, tmp_path_factory.mktemp("minilm") / "minilm").version_dir
    for name, rest in {"one": "max_batch_size: 1", "delayed": f"max_batch_size: 32\n{delay}", "spare": ""}.items():
        (repository / name).mkdir()
        (repository / name / "1").symlink_to(version)
        (repository / name / "config.pbtxt").write_text(f'backend: "trtdecode"\n{rest}\n')
    with make_server(repository) as server:
        yield server


@contextmanager
def texts(server: RunningServer, model: str, count: int) -> Iterator[None]:
    """So many clients, each with one text after another."""
    stop = threading.Event()
    body = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a cat on a mat"]}]}
    answered: list[int] = []

    def ask() -> None:
        while not stop.is_set():
            answered.append(server.client.call("POST", f"/v2/models/{model}/infer", body).status)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: len(answered) >= 2 * count, what="answers")
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(answered) == {200}


def test_an_encoder_that_is_idle(encoders: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask_doctor(encoders, "spare", capsys)["bottleneck"] == "idle"


def test_an_encoder_whose_batches_are_too_small(encoders: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    with texts(encoders, "one", 8):
        answer = ask_doctor(encoders, "one", capsys)
    assert answer["bottleneck"] == "batch size"
    assert answer["evidence"][0].startswith("a batch has 1.0 texts")
    assert answer["evidence"][-1] == "the log says max_batch_size 1, max_queue_delay_microseconds 0"
    assert answer["next_step"].startswith("raise max_batch_size above 1")


def test_an_encoder_that_waits_for_more(encoders: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    with texts(encoders, "delayed", 2):
        answer = ask_doctor(encoders, "delayed", capsys)
    assert answer["bottleneck"] == "delay"
    assert answer["evidence"][-1] == "the log says max_batch_size 32, max_queue_delay_microseconds 200000"
