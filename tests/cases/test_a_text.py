"""CASES group A over the real server: C01 (cut characters), C03 (spaces), C05 and C07 (stop strings)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from .conftest import C01_TEXT, SCRIPTS, ScriptServer

pytestmark = pytest.mark.triton_server


def sse(scripts: ScriptServer, script: str, *, model: str = "script", **fields: Any) -> list[dict[str, Any]]:
    """The gateway's server-sent events without `[DONE]`, which must be last."""
    answer = scripts.completion(script, model=model, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def streamed(scripts: ScriptServer, script: str, *, model: str = "script", **fields: Any) -> dict[str, list[str]]:
    """The chunks of each way to stream."""
    options = fields.pop("options", {})  # what only Triton's own end points have
    events = scripts.generate_stream(script, model=model, **fields, **options)
    answer = scripts.grpc(script, model=model, stream=True, **fields, **options)
    assert answer.errors == [] and answer.num_final == 1
    chunks = [choice["text"] for event in sse(scripts, script, model=model, **fields) for choice in event["choices"]]
    return {
        "/generate_stream": [event["text_output"] for event in events],
        "gRPC": answer.output("text_output"),
        "SSE": chunks,
    }


def whole(scripts: ScriptServer, script: str, *, model: str = "script", **fields: Any) -> set[str]:
    """The texts of each way to ask for the whole answer; one element when they agree."""
    options = fields.pop("options", {})
    return {
        scripts.generate(script, model=model, **fields, **options)["text_output"],
        scripts.grpc(script, model=model, stream=False, **fields, **options).text,
        scripts.completion(script, model=model, **fields).json()["choices"][0]["text"],
    }


# C01 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "text"), [("c01", C01_TEXT), ("pepper", "🌶"), ("flag", "🇳🇴é")])
def test_c01_characters_of_several_tokens_arrive_whole(scripts: ScriptServer, script: str, text: str) -> None:
    assert len(SCRIPTS[script]) == len(text.encode()) > len(text), "the characters are cut"
    for way, chunks in streamed(scripts, script, max_tokens=60).items():
        assert "".join(chunks) == text, way
        assert not any("\ufffd" in chunk for chunk in chunks), way
    assert whole(scripts, script, max_tokens=60) == {text}


@pytest.mark.parametrize(("num_tokens", "text"), [(1, ""), (2, ""), (3, ""), (4, "🌶")])
def test_c01_a_limit_inside_a_character_drops_its_half(scripts: ScriptServer, num_tokens: int, text: str) -> None:
    """Policy: "" rather than a replacement character, in both modes; the tokens are counted."""
    answer = scripts.generate("pepper", max_tokens=num_tokens, return_num_output_tokens=True)
    assert (answer["text_output"], answer["finish_reason"], answer["num_output_tokens"]) == (text, "length", num_tokens)
    for way, chunks in streamed(scripts, "pepper", max_tokens=num_tokens).items():
        assert "".join(chunks) == text, way
    body = scripts.completion("pepper", max_tokens=num_tokens).json()
    assert (body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]) == ("length", num_tokens)


def test_c01_neighbour_bytes_that_are_no_character_become_one_replacement(scripts: ScriptServer) -> None:
    for way, chunks in streamed(scripts, "broken", max_tokens=3).items():
        assert "".join(chunks) == "a\ufffdb", way
    assert whole(scripts, "broken", max_tokens=3) == {"a\ufffdb"}


def test_c01_neighbour_byte_tokens_among_pieces(scripts: ScriptServer) -> None:
    for way, chunks in streamed(scripts, "bytes", model="pieces").items():
        assert "".join(chunks) == " ok🌶 end", way
        assert not any("\ufffd" in chunk for chunk in chunks), way
    assert whole(scripts, "bytes", model="pieces") == {" ok🌶 end"}


# C03 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "text"), [("deep", "Deep learning is a subset of ML"), ("led", " Deep learning  twice")]
)
def test_c03_spaces_between_words_stay(scripts: ScriptServer, script: str, text: str) -> None:
    """A continuation keeps its leading space, unlike the beginning of a text: the answer follows the prompt."""
    assert whole(scripts, script, model="pieces") == {text}
    for way, chunks in streamed(scripts, script, model="pieces").items():
        assert "".join(chunks) == text, way
    assert "Deep learning is a subset of ML".count(" ") == 6


def test_c03_neighbour_a_reader_that_is_slow_gets_merged_chunks(scripts: ScriptServer) -> None:
    """Tokens that wait for their reader leave together; what they are together is the same text."""
    fields = scripts.fields("pieces", "deep", stream=True, return_num_output_tokens=True)
    texts, counts = [], []
    for event in scripts.server.client.generate_stream("pieces", fields):
        texts.append(event["text_output"])
        counts.append(event["num_output_tokens"])
        time.sleep(0.01)
    assert ("".join(texts), sum(counts)) == ("Deep learning is a subset of ML", 8)


# C05 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "excluded", "included"),
    [
        ("two three fo", "one ", "one two three fo"),
        ("e t", "on", "one t"),
        ("one", "", "one"),
        (" five", "one two three four", "one two three four five"),
        ("n", "o", "on"),
    ],
)
def test_c05_a_stop_across_token_borders(scripts: ScriptServer, stop: str, excluded: str, included: str) -> None:
    for include, text in ((False, excluded), (True, included)):
        options = {"sampling_parameters": json.dumps({"include_stop_str_in_output": include})}
        answer = scripts.generate("words", stop=[stop], **options)
        assert (answer["text_output"], answer["finish_reason"]) == (text, "stop")
        events = scripts.generate_stream("words", stop=[stop], **options)
        assert "".join(event["text_output"] for event in events) == text
        assert [event["finish_reason"] for event in events] == ["None"] * (len(events) - 1) + ["stop"]
    chunks = [event["choices"][0] for event in sse(scripts, "words", stop=stop)]
    assert "".join(choice["text"] for choice in chunks) == excluded
    assert chunks[-1]["finish_reason"] == "stop"


# C07 ---------------------------------------------------------------------------------------------------------------

FULL = "red, green. blue"


@pytest.mark.parametrize(
    ("stop", "text"),
    [(",", "red"), ([","], "red"), ([",", "."], "red"), (["."], "red, green"), ([], FULL), (None, FULL)],
)
def test_c07_stop_in_every_form(scripts: ScriptServer, stop: Any, text: str) -> None:
    assert scripts.completion("red", stop=stop).json()["choices"][0]["text"] == text
    inside = scripts.generate("red", sampling_parameters=json.dumps({"stop": stop}))
    assert inside["text_output"] == text
    if isinstance(stop, list) and stop:
        assert scripts.generate("red", stop_words=stop)["text_output"] == text


@pytest.mark.parametrize("stop", [[""], [",", ""]])
def test_c07_an_empty_stop_is_refused(scripts: ScriptServer, settled: None, stop: list[str]) -> None:
    answer = scripts.completion("red", stop=stop)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stop")
    fields = scripts.fields("script", "red")
    for given in ({"sampling_parameters": json.dumps({"stop": stop})}, {"stop": stop}):
        refused = scripts.server.client.generate("script", {**fields, **given})
        assert refused.status == 400
        assert "stop" in refused.json()["error"] and "empty" in refused.json()["error"]


def test_c07_a_list_among_parameters_is_never_ignored(scripts: ScriptServer, settled: None) -> None:
    """Triton's own parser takes what is inside `parameters` as if it stood beside it: a list fills the tensor."""
    fields = scripts.fields("script", "red")
    for stop, text in (([","], "red"), (["."], "red, green"), ([",", "."], "red")):
        answer = scripts.server.client.generate("script", {**fields, "parameters": {"stop": stop}})
        assert (answer.status, answer.json()["text_output"]) == (200, text)
    unknown = scripts.server.client.generate("script", {**fields, "parameters": {"stop_sequences": [","]}})
    assert (unknown.status, "stop_sequences" in unknown.json()["error"]) == (400, True)


def test_c07_thousands_of_stops_that_never_match(scripts: ScriptServer, settled: None) -> None:
    stops = ["red, green" + "z" * 190 + chr(0x4E00 + index) for index in range(2000)]
    for fields in ({"stop_words": stops}, {"sampling_parameters": json.dumps({"stop": stops})}):
        answer = scripts.server.client.generate("script", {**scripts.fields("script", "red"), **fields})
        if answer.status == 200:
            assert answer.json()["text_output"] == FULL
        else:
            assert (answer.status, "stop" in answer.json()["error"]) == (400, True)
