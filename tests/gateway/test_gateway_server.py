"""The gateway over HTTP, with real clients, in front of a real tritonserver."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import pytest
from chain_model import PEPPER, cycle_text
from gateway_fixtures import KEY, Gateway
from triton_fixtures import metric, wait_for
from trtdecode.gateway import streaming
from trtdecode.gateway.local_inspect import LocalInspector
from trtdecode.server.ports import free_ports
from trtdecode.server.processes import listener_of

pytestmark = pytest.mark.triton_server

GREEDY = {"temperature": 0}


def completion(gateway: Gateway, **fields: object) -> httpx.Response:
    return gateway.client.post("/v1/completions", json={"model": "chain", "prompt": "x", **GREEDY, **fields})


def client(gateway: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none-needed", max_retries=0, http_client=gateway.client)


# --- with the openai client ---


def test_a_chat_answers_and_counts(gateway: Gateway) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client(gateway).chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=24)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "smollm2"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 5 <= usage.completion_tokens < 24


def test_a_streamed_chat_is_the_same_text(gateway: Gateway) -> None:
    request = {"model": "smollm2", "messages": [{"role": "user", "content": "Count to five."}], "max_tokens": 30}
    whole = client(gateway).chat.completions.create(**request, temperature=0)
    chunks = list(
        client(gateway).chat.completions.create(
            **request, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len(chunks) > 5


def test_logprobs_in_the_form_of_the_client(gateway: Gateway) -> None:
    messages = [{"role": "user", "content": "Say hi."}]
    answer = client(gateway).chat.completions.create(
        model="smollm2", messages=messages, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == answer.choices[0].message.content
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob  # greedy: the chosen one is the best
        assert bytes(entry.bytes).decode() == entry.token


def test_samples_differ_and_a_seed_repeats_them(gateway: Gateway) -> None:
    def texts() -> list[str]:
        messages = [{"role": "user", "content": "Invent a name for a ship."}]
        answer = client(gateway).chat.completions.create(
            model="smollm2", messages=messages, temperature=1.5, max_tokens=12, n=3, seed=5
        )
        return [choice.message.content for choice in answer.choices]

    first = texts()
    assert len(set(first)) > 1
    assert texts() == first


def test_a_forced_tool_is_called_with_arguments_of_its_schema(gateway: Gateway) -> None:
    pytest.importorskip("llguidance")
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    }
    answer = client(gateway).chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "What is the weather in Oslo, in Celsius?"}],
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        temperature=0,
        max_tokens=100,
    )
    call = answer.choices[0].message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather"
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("C", "F")


def test_errors_are_the_clients_own_kinds(gateway: Gateway) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        client(gateway).chat.completions.create(model="smollm2", messages=messages, temperature=9)
    assert caught.value.body["param"] == "temperature"
    with pytest.raises(openai.NotFoundError):
        client(gateway).chat.completions.create(model="absent", messages=messages)
    with pytest.raises(openai.BadRequestError, match="chat template"):
        client(gateway).chat.completions.create(model="chain", messages=messages)


# --- completions on the chain model, whose answers are known ---


def test_limits_and_reasons(gateway: Gateway) -> None:
    cut = completion(gateway, max_tokens=7).json()
    assert cut["choices"][0]["text"] == cycle_text(7)
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens"] == 7
    natural = completion(gateway, prompt="!").json()  # no max_tokens: no hidden limit
    assert (natural["choices"][0]["text"], natural["choices"][0]["finish_reason"]) == ("ABCDE", "stop")
    assert natural["usage"]["prompt_tokens"] == 1
    null = completion(gateway, prompt="!", max_tokens=None, stop=None, n=None, seed=None).json()
    assert null["choices"] == natural["choices"]


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (" three", "one two"),
        ([" three"], "one two"),
        ([" four", " three"], "one two"),
        ([], cycle_text(6)),
        (None, cycle_text(6)),
    ],
)
def test_stop_in_all_its_forms(gateway: Gateway, stop: object, text: str) -> None:
    assert completion(gateway, max_tokens=6, stop=stop).json()["choices"][0]["text"] == text


@pytest.mark.parametrize("stop", [[""], [",", ""]])
def test_an_empty_stop_is_refused_by_name(gateway: Gateway, stop: object) -> None:
    answer = completion(gateway, max_tokens=6, stop=stop)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stop")


def test_half_characters_never_leave_in_a_stream(gateway: Gateway) -> None:
    body = {"model": "chain", "prompt": "~", "stream": True, **GREEDY}
    pieces = []
    with gateway.client.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                pieces += [choice["text"] for choice in json.loads(line[6:])["choices"]]
    assert "".join(pieces).encode() == PEPPER
    assert not any("\ufffd" in piece for piece in pieces)


def test_many_prompts_keep_their_order_and_samples(gateway: Gateway) -> None:
    answer = completion(gateway, prompt=["!", ".", "x"], max_tokens=6, n=2, echo=True).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == ["!ABCDE"] * 2 + ["."] * 2 + ["x" + cycle_text(6)] * 2
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert answer["usage"]["prompt_tokens"] == 3
    body = {"model": "chain", "prompt": ["!", "x"], "max_tokens": 6, "n": 2, "stream": True, **GREEDY}
    streamed = [""] * 4
    with gateway.client.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    streamed[choice["index"]] += choice["text"]
    assert streamed == ["ABCDE"] * 2 + [cycle_text(6)] * 2


def test_a_body_that_is_not_right_gets_the_error_object(gateway: Gateway) -> None:
    for content in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "chain"}', b'{"model": "chain", "prompt": []}'):
        answer = gateway.client.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, content
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert gateway.client.get("/v1/absent").json()["error"]["type"] == "not_found_error"
    assert gateway.client.get("/v1/completions").status_code == 405
    assert gateway.client.get("/v1/completions").headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("content", "param", "said"),
    [
        ('{"model": "chain", "prompt": "x\\ud800"}', "prompt", "half a surrogate pair"),
        ('{"model": "chain", "prompt": "x", "stop": ["\\udc00"]}', "stop", "half a surrogate pair"),
        ('{"model": "chain", "prompt": "x", "\\ud800": 1}', "?", "half a surrogate pair"),
        # As INT32 this would be token 1.
        ('{"model": "chain", "prompt": [4294967297]}', "prompt.0", "less than 2147483648"),
        ('{"model": "chain", "prompt": ""}', "prompt", "at least one token"),
        (
            '{"model": "chain", "prompt": "x", "stream_options": {"include_usage": 1}}',
            "stream_options.include_usage",
            "",
        ),
        ('{"model": "chain", "prompt": "x"', None, "not JSON at byte 32"),
    ],
)
def test_what_cannot_be_a_prompt_is_refused_by_name(
    gateway: Gateway, content: str, param: str | None, said: str
) -> None:
    answer = gateway.client.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert said in error["message"]


def test_the_backends_own_refusal_names_the_field(gateway: Gateway) -> None:
    answer = completion(gateway, prompt="x" * 5000, max_tokens=1)
    assert answer.status_code == 400
    assert "4096" in answer.json()["error"]["message"]


# --- life and limits ---


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_cancels_in_triton(gateway: Gateway, stream: bool) -> None:
    """Of an answer that would take a minute. How soon is measured by `scripts/bench gateway`; the target is 100 ms."""

    def cancelled() -> float:
        return metric(gateway.server, "trtdecode_requests_finished_total", "smollm2", reason="cancelled")

    before, control = cancelled(), gateway.server.control("smollm2")
    fields = {"model": "smollm2", "prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": stream, **GREEDY}
    body = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode() + body)
        wait_for(lambda: control.ask("status")["live"] == 1, what="the request runs")
        if stream:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")
    wait_for(lambda: control.ask("status")["live"] == 0, what="request gone")
    wait_for(lambda: cancelled() == before + 1, what="it was cancelled, not finished")
    wait_for(lambda: metric(gateway.server, "trtdecode_requests_running", "smollm2") == 0, what="nothing running")


def test_a_full_queue_is_503_with_retry_after(gateway: Gateway) -> None:
    answers: list[httpx.Response] = []
    body = {"model": "chain_small", "prompt": "x", "max_tokens": 6000, **GREEDY}

    def ask() -> None:
        answers.append(httpx.post(f"{gateway.url}/v1/completions", json=body, timeout=60))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [answer for answer in answers if answer.status_code == 503]
    assert refused
    assert all(answer.headers["Retry-After"] and "queue is full" in answer.text for answer in refused)
    assert {answer.status_code for answer in answers} == {200, 503}


def test_a_server_that_is_away_is_503(start_gateway: Callable[..., Gateway]) -> None:
    away = start_gateway(triton_urls=("127.0.0.1:9",), metrics_urls=())
    for answer in (completion(away, max_tokens=1), away.client.get("/health"), away.client.get("/v1/models")):
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) > 0


def test_one_of_two_replicas_away_is_not_noticed(start_gateway: Callable[..., Gateway], gateway: Gateway) -> None:
    both = start_gateway(triton_urls=("127.0.0.1:9", gateway.server.grpc_address), prefix_affinity=True)
    assert both.client.get("/health").json()["replicas_ready"] == 1
    answer = completion(both, max_tokens=2)
    assert answer.json()["choices"][0]["text"] == cycle_text(2)
    assert answer.headers["x-trtdecode-replica"] == "1 failover"


def test_keys_limits_and_body_size(start_gateway: Callable[..., Gateway]) -> None:
    guarded = start_gateway(
        api_keys=(KEY,), requests_per_minute=2, max_body_bytes=2000, cors_origins=("https://a.example",)
    )
    assert completion(guarded, max_tokens=1).status_code == 401
    assert guarded.client.get("/health").status_code == 200
    guarded.client.headers["Authorization"] = f"Bearer {KEY}"
    big = completion(guarded, prompt="x" * 3000)
    assert (big.status_code, big.json()["error"]["code"]) == (413, "body_too_large")
    assert completion(guarded, max_tokens=1).status_code == 200
    limited = completion(guarded, max_tokens=1)
    assert (limited.status_code, limited.headers["Retry-After"]) == (429, "30")
    allowed = guarded.client.options(
        "/v1/completions", headers={"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    )
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"


def test_cross_origin_is_off_by_default(gateway: Gateway) -> None:
    answer = gateway.client.get("/health", headers={"Origin": "https://a.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_request_ids_come_back_and_odd_ones_are_replaced(gateway: Gateway) -> None:
    assert gateway.client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert gateway.client.get("/health", headers={"x-request-id": "x" * 500}).headers["x-request-id"] != "x" * 500


def test_an_equal_request_is_answered_from_the_cache(start_gateway: Callable[..., Gateway]) -> None:
    cached = start_gateway(response_cache_entries=10)

    def generated() -> float:
        return metric(cached.server, "trtdecode_generation_tokens_total", "chain")

    first = completion(cached, max_tokens=11)
    wait_for(lambda: generated() > 0, what="counters published")
    time.sleep(0.5)
    before = generated()
    second = completion(cached, max_tokens=11)
    assert first.headers["x-trtdecode-cache"] == "miss"
    assert second.headers["x-trtdecode-cache"] == "hit"
    assert second.json()["choices"] == first.json()["choices"]
    time.sleep(0.5)
    assert generated() == before
    assert "x-trtdecode-cache" not in completion(cached, max_tokens=2, temperature=1).headers


def test_rules_send_a_request_to_another_model(start_gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    rules = tmp_path / "routes.toml"
    rules.write_text('[[rule]]\nmodel = "assistant"\nmin_prompt_chars = 3\ntarget = "chain"\n')
    routed = start_gateway(routes=rules)
    answer = completion(routed, model="assistant", prompt="xyz", max_tokens=1)
    assert answer.json()["choices"][0]["text"] == cycle_text(1)
    assert (answer.headers["x-trtdecode-model"], answer.headers["x-trtdecode-route"]) == ("chain", "rule 1")
    assert answer.json()["model"] == "assistant"  # the client sees the name it asked for
    assert completion(routed, model="assistant", prompt="x", max_tokens=1).status_code == 404


def test_user_text_never_becomes_a_control_token(gateway: Gateway) -> None:
    def prompt_tokens(content: str) -> int:
        body = {"model": "smollm2", "messages": [{"role": "user", "content": content}], "max_tokens": 1, **GREEDY}
        return int(gateway.client.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"])

    # As a control token <|im_end|> would be one token; as text it is several.
    assert prompt_tokens("a<|im_end|>b") > prompt_tokens("ab") + 2


def test_models_metrics_and_document(gateway: Gateway) -> None:
    names = [model["id"] for model in gateway.client.get("/v1/models").json()["data"]]
    assert names == ["chain", "chain_small", "smollm2"]
    assert "trtdecode_generation_tokens_total" in gateway.client.get("/metrics").text
    assert "/v1/chat/completions" in gateway.client.get("/openapi.json").json()["paths"]


def test_the_engine_room_tells_what_runs(gateway: Gateway) -> None:
    with gateway.client.stream("GET", "/v1/engine") as response:
        line = next(line for line in response.iter_lines() if line.startswith("data: {"))
    figures = json.loads(line[6:])["replicas"][0]["models"]["smollm2"]
    assert figures["kv_blocks_total"] > 100
    assert figures["kv_blocks_used"] <= figures["kv_blocks_total"]


def test_the_engine_room_maps_blocks_to_sequences(gateway: Gateway) -> None:
    """Two streams and the blocks that ended requests left for a hit."""
    for prompt in ("a " * 100, "b " * 100):
        completion(gateway, model="smollm2", prompt=prompt, max_tokens=1)
    long = {"model": "smollm2", "stream": True, "max_tokens": 1500, "ignore_eos": True, **GREEDY}
    with (
        gateway.client.stream("POST", "/v1/completions", json={**long, "prompt": "x"}) as first,
        gateway.client.stream("POST", "/v1/completions", json={**long, "prompt": "y"}) as second,
        gateway.client.stream("GET", "/v1/engine") as engine,
    ):
        lines = first.iter_lines(), second.iter_lines()  # kept: httpx ends a stream with its iterator
        next(lines[0]), next(lines[1])
        views = (json.loads(line[6:]) for line in engine.iter_lines() if line.startswith("data: {"))
        models = (view["replicas"][0]["models"]["smollm2"] for view in views)
        figures = next(found for found in models if found.get("num_sequences") == 2)
    counts: dict[int, int] = {}
    for owner, count in figures["blocks"]:
        counts[owner] = counts.get(owner, 0) + count
    assert sum(counts.values()) == figures["kv_blocks_total"]
    assert len([owner for owner in counts if owner > 0]) == 2
    assert counts[-1] >= 6  # 100 tokens are three full blocks of 32 each
    assert counts[0] > 0


def test_a_replica_elsewhere_has_counts_and_no_map(gateway: Gateway) -> None:
    assert asyncio.run(LocalInspector(("triton.example:8001",))(0, "chain")) is None
    assert asyncio.run(LocalInspector(("127.0.0.1:9",))(0, "chain")) is None
    assert asyncio.run(LocalInspector((gateway.server.grpc_address,))(0, "chain"))["blocks_per_cell"] == 1


def test_answers_of_a_split_are_logged_side_by_side(start_gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    rules, log = tmp_path / "routes.toml", tmp_path / "answers.jsonl"
    rules.write_text('[[split]]\nmodel = "ab"\ntargets = { chain = 0.5, chain_small = 0.25, absent = 0.25 }\n')
    split = start_gateway(routes=rules, split_log=log)
    answers = {user: completion(split, model="ab", prompt="!", user=user) for user in "abcdefghijkl"}
    answered = [answer for answer in answers.values() if answer.status_code == 200]
    assert len(answered) < len(answers)  # some users' target is not served
    user = next(user for user, answer in answers.items() if answer.status_code == 200)
    body = {"model": "ab", "prompt": "!", "stream": True, "user": user, **GREEDY}
    assert "[DONE]" in split.client.post("/v1/completions", json=body).text
    assert {answer.headers["x-trtdecode-model"] for answer in answered} == {"chain", "chain_small"}
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) == len(answered) + 1, 60, "the log")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["answered_by"] for line in lines} == {"chain", "chain_small"}
    for line in lines:
        assert (line["asked"], set(line["answers"])) == ("ab", {"chain", "chain_small", "absent"})
        assert line["answers"]["chain"]["texts"] == line["answers"]["chain_small"]["texts"] == ["ABCDE"]
        assert line["answers"]["chain"]["num_tokens"] == 6  # with the end token
        assert "absent" in line["answers"]["absent"]["error"]


def test_a_reader_that_takes_nothing_is_cut_off(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers fill, and after the timeout the request ends in Triton; nothing is held for a reader that is gone."""
    monkeypatch.setattr(streaming, "SLOW_READER_TIMEOUT", 0.5)
    control = gateway.server.control("chain")
    body = json.dumps(
        {
            "model": "chain",
            "prompt": "x",
            "max_tokens": 4000,
            "n": 8,
            "logprobs": 20,
            "stream": True,
            "ignore_eos": True,
        }
    ).encode()
    before = metric(gateway.server, "trtdecode_requests_finished_total", "chain", reason="cancelled")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        connection.sendall(f"{head}\r\n\r\n".encode() + body)
        wait_for(lambda: control.ask("status")["live"] == 1, 20, "the request runs")
        wait_for(lambda: control.ask("status")["live"] == 0, 60, "the request is ended")

    def cancelled() -> float:
        return metric(gateway.server, "trtdecode_requests_finished_total", "chain", reason="cancelled") - before

    wait_for(lambda: cancelled() > 0, 5, "it was cancelled, not finished")


def test_tls(gateway: Gateway, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate, port = tmp_path / "key.pem", tmp_path / "certificate.pem", free_ports().http
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    command = [sys.executable, "-c", "from trtdecode.cli import main; main()", "gateway", "--port", str(port)]
    command += ["--triton", gateway.server.grpc_address, "--tls-certificate", str(certificate), "--tls-key", str(key)]
    trusted = ssl.create_default_context(cafile=str(certificate))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: listener_of(port) is not None, 30, "the gateway listens")
            answer = httpx.get(f"https://127.0.0.1:{port}/health", verify=trusted, timeout=30)
            assert answer.json()["status"] == "ready"
            with pytest.raises(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=30)
        finally:
            process.terminate()
