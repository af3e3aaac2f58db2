"""Bad input: an error that names the field, the value and the limit; neighbours and pool undisturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from chain_model import cycle_text
from triton_fixtures import RunningServer, wait_for
from triton_grpc import GrpcStream, ask

pytestmark = pytest.mark.triton_server


@pytest.fixture
def neighbour(chain_server: RunningServer, post: Callable[[str], None]) -> Iterator[None]:
    """A healthy request in the same batch; it must give its whole text, and POST must hold."""
    with GrpcStream(chain_server.grpc_address) as stream:
        answer = stream.send("chain", {"text_input": "x", "max_tokens": 300, "temperature": 0.0, "stream": True})
        wait_for(lambda: answer.responses, what="the neighbour's first token")
        yield
        assert answer.wait().text == cycle_text(300)
        assert answer.errors == []


# Field -> (value, what the error must say). Sent as fields of /generate.
FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"text_input": ""}, "text_input: got ''; must hold at least one token"),
    ({"text_input": "a" * 4200}, "leave no room in a context of 4096"),
    ({"text_input": "a" * 2_000_000}, "text_input: got '2000000 bytes'; cannot fit a context of 4096"),
    ({"text_input": "abc", "max_tokens": 4094}, "max_tokens: got 4094; with a prompt of 3 tokens at most 4093"),
    ({"max_tokens": 0}, "max_tokens: got 0"),
    ({"max_tokens": -1}, "max_tokens: got -1"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens: got 9; must be at most max_tokens (3)"),
    ({"temperature": -0.1}, "temperature: got -0.1"),
    ({"top_p": 1.5}, "top_p: got 1.5"),
    ({"top_k": -7}, "top_k: got -7"),
    ({"min_p": 2.0}, "min_p: got 2.0"),
    ({"repetition_penalty": 0.0}, "repetition_penalty: got 0.0"),
    ({"presence_penalty": 2.5}, "presence_penalty: got 2.5"),
    ({"frequency_penalty": -2.1}, "frequency_penalty: got -2.1"),
    ({"n": 0}, "n: got 0"),
    ({"n": 100_000}, "n: got 100000"),
    ({"stop": [""]}, "stop"),
    ({"bad_words": [""]}, "bad_words"),
    ({"sampling_parameters": "not json"}, "sampling_parameters: got 'not json'; must be a JSON object"),
    ({"sampling_parameters": "[1]"}, "sampling_parameters: got '[1]'; must be a JSON object"),
    ({"sampling_parameters": '{"temperature": NaN}'}, "sampling_parameters: got 'NaN'; must hold finite numbers"),
    ({"sampling_parameters": '{"temperature": Infinity}'}, "got 'Infinity'"),
    ({"sampling_parameters": '{"temprature": 1}'}, "did you mean 'temperature'?"),
    ({"sampling_parameters": '{"max_tokens": "many"}'}, "max_tokens: got 'many'"),
    ({"sampling_parameters": '{"stream": "yes"}'}, "stream: got 'yes'; must be true or false"),
    ({"sampling_parameters": "[" * 100_000}, "sampling_parameters"),
    ({"sampling_parameters": '{"stop": ["\\ud800"]}'}, "sampling_parameters"),
    ({"max_tokns": 3}, "did you mean 'max_tokens'?"),
    ({"logprobs": 10_000}, "logprobs: got 10000"),
    ({"stream": True, "streaming": False}, "streaming: got False; is another name of stream"),
    ({"stop": ["a"], "stop_words": ["b"]}, "stop: got ['a']; is another name of stop_words"),
    ({"input_ids": [1, 2]}, "text_input: got 'both'; send exactly one of text_input and input_ids"),
    ({"return_output_ids": True, "n": 2}, "return_output_ids: got True; needs n = 1"),
    ({"guided_decoding_guide_type": "poem", "guided_decoding_guide": "x"}, "guided_decoding_guide_type: got 'poem'"),
]


@pytest.mark.parametrize(("fields", "expected"), FIELDS, ids=[str(fields)[:50] for fields, _ in FIELDS])
def test_generate_says_what_is_wrong(
    chain_server: RunningServer, neighbour: None, fields: dict[str, Any], expected: str
) -> None:
    answer = chain_server.client.generate("chain", {"text_input": "x", **fields})
    assert answer.status == 400, answer.body
    assert expected in answer.json()["error"]


# Tensors as gRPC sends them -> what the error must say. Some are Triton's own refusals.
TENSORS: list[tuple[dict[str, Any], str]] = [
    ({}, "text_input"),
    ({"text_input": np.array([b"\xff\xfeabc"], object)}, "text_input: got b'\\xff\\xfeabc'; must be valid UTF-8"),
    ({"text_input": np.array([b"\xf0\x9f\x8c"], object)}, "must be valid UTF-8 (byte 0)"),
    ({"text_input": np.array([b"a", b"b"], object)}, "text_input"),
    ({"text_input": np.array([[b"a"]], object)}, "text_input"),
    ({"text_input": np.array([1], np.int32)}, "text_input"),
    ({"text_input": "x", "temperature": np.array([1], np.int32)}, "temperature"),
    ({"text_input": "x", "temperature": np.array([np.nan], np.float32)}, "temperature: got nan"),
    ({"text_input": "x", "top_p": np.array([np.inf], np.float32)}, "top_p: got inf"),
    ({"text_input": "x", "max_tokens": np.array([1, 2], np.int32)}, "max_tokens"),
    ({"text_input": "x", "max_tokens": np.array([5], np.int64)}, "max_tokens"),
    ({"text_input": "x", "colour": "red"}, "colour"),
    ({"input_ids": np.array([-1], np.int32)}, "input_ids: got -1"),
    ({"input_ids": np.array([5, 100_000], np.int32)}, "input_ids: got 100000; token ids must be in 0.."),
    ({"input_ids": np.array([], np.int32)}, "must hold at least one token"),
]


@pytest.mark.parametrize(("inputs", "expected"), TENSORS, ids=[str(inputs)[:60] for inputs, _ in TENSORS])
def test_grpc_says_what_is_wrong(
    chain_server: RunningServer, neighbour: None, inputs: dict[str, Any], expected: str
) -> None:
    answer = ask(chain_server.grpc_address, "chain", inputs)
    assert len(answer.errors) == 1
    assert expected in answer.errors[0]
    assert answer.responses == []


def test_a_batch_of_two_prompts_is_refused(chain_server: RunningServer, post: Callable[[str], None]) -> None:
    inputs = {"text_input": np.array([[b"a"], [b"b"]], object)}
    answer = ask(chain_server.grpc_address, "chain_batched", inputs)
    assert "text_input: got [2, 1]; must have shape [1, 1]: one prompt a request" in answer.errors[0]


def test_raw_garbage_on_the_end_points(chain_server: RunningServer, neighbour: None) -> None:
    for raw in (
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\x00\xff",
        b'{"text_input": "\xff"}',
        b'{"text_input": 5}',
    ):
        for end_point in ("generate", "generate_stream"):
            answer = chain_server.client.call("POST", f"/v2/models/chain/{end_point}", raw)
            assert answer.status in (400, 500), (raw, answer)
