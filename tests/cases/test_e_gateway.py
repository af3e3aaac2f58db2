"""CASES group E through the gateway: C32 (limits, reasons, usage), C33 (one BOS), C35 (perf_analyzer)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chain_model import cycle_text
from script_model import BOS
from triton_fixtures import metric, wait_for
from triton_grpc import ask
from trtdecode.errors import LoadError
from trtdecode.loadtest.perf_analyzer import find_perf_analyzer, measure, write_inputs
from trtdecode.loadtest.traffic import Shot

from .conftest import ScriptServer

pytestmark = pytest.mark.triton_server
ROOT = Path(__file__).resolve().parents[2]

# C32 ---------------------------------------------------------------------------------------------------------------


def chunks(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize(
    ("fields", "num_text", "reason"),
    [
        ({}, 40, "stop"),
        ({"max_tokens": None}, 40, "stop"),
        ({"max_tokens": 10}, 10, "length"),
        ({"max_tokens": 40}, 40, "length"),
        ({"max_tokens": 41}, 40, "stop"),
        ({"max_tokens": 1}, 1, "length"),
    ],
    ids=str,
)
def test_c32_no_hidden_limit_and_the_true_reason(
    scripts: ScriptServer, fields: dict[str, Any], num_text: int, reason: str
) -> None:
    """Without max_tokens an answer runs to its end. The end token counts: the model made it."""
    body = scripts.completion("forty", **fields).json()
    assert body["choices"][0] == {"index": 0, "text": "a" * num_text, "logprobs": None, "finish_reason": reason}
    usage = body["usage"]
    assert usage["prompt_tokens"] == len(scripts.prompt("forty"))
    assert usage["completion_tokens"] == num_text + (reason == "stop")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert body["model"] == "script"


@pytest.mark.parametrize("num_samples", [1, 2])
def test_c32_streamed_usage_counts_every_sample_and_the_prompt_once(scripts: ScriptServer, num_samples: int) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "n": num_samples, "seed": 1}
    answer = scripts.completion("forty", max_tokens=5, ignore_eos=True, **options)
    events = chunks(answer.text)
    assert events[-1]["choices"] == []
    prompt_tokens = len(scripts.prompt("forty"))
    assert events[-1]["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 5 * num_samples,
        "total_tokens": prompt_tokens + 5 * num_samples,
    }
    assert all(event["usage"] is None and event["choices"] for event in events[:-1])
    assert {event["model"] for event in events} == {"script"}


def test_c32_neighbours_of_stream_options(scripts: ScriptServer, settled: None) -> None:
    """Without a stream they are refused; a stream without them has no usage anywhere; several prompts add up."""
    refused = scripts.completion("forty", stream_options={"include_usage": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream_options")
    assert all("usage" not in event for event in chunks(scripts.completion("words", stream=True).text))
    body = {"model": "script", "prompt": [scripts.prompt("words"), scripts.prompt("red")], "temperature": 0, "n": 2}
    both = scripts.gateway.client.post("/v1/completions", json=body).json()
    assert both["usage"]["prompt_tokens"] == len(scripts.prompt("words")) + len(scripts.prompt("red"))
    assert both["usage"]["completion_tokens"] == 4 * 6


# C33 ---------------------------------------------------------------------------------------------------------------


def num_prompt_tokens(scripts: ScriptServer, **prompt: Any) -> int:
    inputs = {**prompt, "max_tokens": 1, "return_num_input_tokens": True}
    answer = ask(scripts.server.grpc_address, "pieces", inputs)
    assert answer.errors == []
    return int(answer.output("num_input_tokens")[0])


def test_c33_one_bos_on_every_path(scripts: ScriptServer) -> None:
    """The template begins with the BOS that the tokenizer would add too; the "▁" is the normaliser's."""
    rendered, client = f"{BOS}[hi]", scripts.gateway.client
    messages = [{"role": "user", "content": "hi"}]
    chat = client.post("/v1/chat/completions", json={"model": "pieces", "messages": messages, "max_tokens": 1}).json()
    raw = client.post("/v1/completions", json={"model": "pieces", "prompt": rendered, "max_tokens": 1}).json()
    counts = {chat["usage"]["prompt_tokens"], raw["usage"]["prompt_tokens"]}
    assert counts == {num_prompt_tokens(scripts, text_input=rendered)} == {6}
    ids = scripts.models["pieces"].vocab
    one_bos = [ids[BOS], ids["▁"], *(ids[bytes([byte])] for byte in b"[hi]")]
    assert num_prompt_tokens(scripts, input_ids=np.array(one_bos, np.int32)) == 6
    assert num_prompt_tokens(scripts, text_input="[hi]") == 6, "the tokenizer's own BOS"


def test_c33_neighbours_two_bos_and_one_inside(scripts: ScriptServer) -> None:
    """Policy: however many BOS a text begins with, the model sees one; further inside they stay."""
    bare = num_prompt_tokens(scripts, text_input="[hi]")
    assert num_prompt_tokens(scripts, text_input=f"{BOS}[hi]") == bare
    assert num_prompt_tokens(scripts, text_input=f"{BOS}{BOS}[hi]") == bare
    assert num_prompt_tokens(scripts, text_input=f"[hi]{BOS}") == bare + 1


def test_c33_neighbour_an_empty_prompt_is_the_bos_alone(scripts: ScriptServer, settled: None) -> None:
    """C09 with a tokenizer that adds a BOS; a user's text never becomes one."""
    assert num_prompt_tokens(scripts, text_input="") == 1
    messages = [{"role": "user", "content": BOS}]
    body = {"model": "pieces", "messages": messages, "max_tokens": 1}
    chat = scripts.gateway.client.post("/v1/chat/completions", json=body).json()
    assert chat["usage"]["prompt_tokens"] == 1 + len(f"_[{BOS}]")


@pytest.mark.parametrize("prompt", [[], [[]], [""], ""])
def test_c09_neighbour_empty_prompts_through_the_gateway(scripts: ScriptServer, settled: None, prompt: Any) -> None:
    answer = scripts.gateway.client.post("/v1/completions", json={"model": "script", "prompt": prompt})
    assert answer.status_code == 400
    with_bos = scripts.gateway.client.post(
        "/v1/completions", json={"model": "pieces", "prompt": prompt, "max_tokens": 1}
    )
    if prompt in ("", [""]):
        assert with_bos.json()["usage"]["prompt_tokens"] == 1
    else:
        assert with_bos.status_code == 400


def test_c09_neighbour_a_chat_without_messages(scripts: ScriptServer, settled: None) -> None:
    answer = scripts.gateway.client.post("/v1/chat/completions", json={"model": "pieces", "messages": []})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")


# C35 ---------------------------------------------------------------------------------------------------------------


def test_c35_perf_analyzer_counts_requests_and_the_server_tokens(scripts: ScriptServer, tmp_path: Path) -> None:
    """The real tool over a gRPC stream, with a prompt that tests every byte on its way."""
    try:
        tool = find_perf_analyzer(ROOT / ".cache" / "perf_analyzer")
    except LoadError as error:
        pytest.skip(str(error))
    names = ("trtdecode_requests_total", "trtdecode_generation_tokens_total", "trtdecode_prompt_tokens_total")
    before = [metric(scripts.server, name, "chain") for name in names]
    prompt = 'héllo 🌶 "q"'
    write_inputs(tmp_path / "inputs.json", [Shot(0.0, prompt, 5)])
    figures = measure(
        tool,
        url=scripts.server.grpc_address,
        model="chain",
        inputs=tmp_path / "inputs.json",
        num_requests=20,
        concurrency=2,
        work_dir=tmp_path,
        timeout=120,
    )

    def counts() -> list[float]:
        return [metric(scripts.server, name, "chain") - value for name, value in zip(names, before, strict=True)]

    assert figures["requests"] >= 20
    # What was warm-up or cut off at the end is not in the profile. The counters are published a moment later.
    wait_for(lambda: counts()[0] >= figures["requests"] and counts()[1] == 5 * counts()[0], what="counters")
    assert counts()[2] == len(prompt.encode()) * counts()[0], "one token a byte: none was lost or changed"
    assert figures["responses"] <= 5 * figures["requests"], "a response may hold several tokens"


def test_c35_neighbour_the_prompt_that_perf_analyzer_sent_is_answered(scripts: ScriptServer) -> None:
    inputs = {"text_input": 'héllo 🌶 "q"', "max_tokens": 5, "temperature": 0.0, "stream": True}
    answer = ask(scripts.server.grpc_address, "chain", {**inputs, "exclude_input_in_output": False})
    assert answer.text == 'héllo 🌶 "q"' + cycle_text(5)
