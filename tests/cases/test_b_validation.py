"""CASES group B over the real server: C09 (empty prompt), C11 (context), C13 (extreme sampling), C16 (bytes)."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from chain_model import cycle_text
from triton_fixtures import RunningServer, wait_for
from triton_grpc import GrpcStream, ask

pytestmark = pytest.mark.triton_server

Post = Callable[[str], None]


def generate(server: RunningServer, **fields: Any) -> tuple[int, dict[str, Any]]:
    given = {"text_input": "x", "temperature": 0.0, "exclude_input_in_output": True, "return_num_output_tokens": True}
    answer = server.client.generate("chain", {**given, "return_finish_reason": True, **fields})
    return answer.status, answer.json()


def test_c09_an_empty_prompt_is_the_client_s_error(chain_server: RunningServer, post: Post) -> None:
    """Policy: the model's tokenizer adds no BOS, so "" has no token; likewise an empty list of ids."""
    with GrpcStream(chain_server.grpc_address) as stream:
        neighbour = stream.send("chain", {"text_input": "x", "max_tokens": 200, "temperature": 0.0, "stream": True})
        wait_for(lambda: neighbour.responses, what="the neighbour's first token")
        for fields in ({"text_input": ""}, {"text_input": "", "stream": True}):
            status, answer = generate(chain_server, **fields)
            assert (status, "text_input: got ''" in answer["error"]) == (400, True)
        empty = ask(chain_server.grpc_address, "chain", {"input_ids": np.array([], np.int32)})
        assert "at least one token" in empty.errors[0]
        assert neighbour.wait().text == cycle_text(200)


def test_c09_neighbours_whitespace_and_nul_are_prompts(chain_server: RunningServer, post: Post) -> None:
    for text in (" ", "\n", "\u0000", "\ufeff"):
        status, answer = generate(chain_server, text_input=text, max_tokens=2)
        assert (status, answer["text_output"]) == (200, cycle_text(2)), repr(text)


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(4090, 7), (4095, 2), (4096, 1), (4097, 1), (1, 4096)])
def test_c11_prompt_and_tokens_beyond_the_context_are_refused(
    chain_server: RunningServer, post: Post, num_prompt: int, max_tokens: int
) -> None:
    """Policy: what is asked for is delivered or refused with both numbers; never clamped in silence."""
    status, answer = generate(chain_server, text_input="a" * num_prompt, max_tokens=max_tokens)
    assert status == 400
    assert "4096" in answer["error"] and str(num_prompt if num_prompt >= 4096 else max_tokens) in answer["error"]


@pytest.mark.parametrize("num_prompt", [4086, 4095])
def test_c11_an_unset_limit_ends_at_the_context(chain_server: RunningServer, post: Post, num_prompt: int) -> None:
    for ignore_eos in (False, True):
        status, answer = generate(chain_server, text_input="a" * num_prompt, ignore_eos=ignore_eos)
        assert (status, answer["finish_reason"]) == (200, "length")
        assert answer["num_output_tokens"] == 4096 - num_prompt


def test_c11_exactly_the_context_is_served(chain_server: RunningServer, post: Post) -> None:
    status, answer = generate(chain_server, text_input="a" * 4086, max_tokens=10)
    assert (status, answer["num_output_tokens"], answer["finish_reason"]) == (200, 10, "length")


GREEDY_LIKE = [
    {"temperature": 0},
    {"temperature": 1e-3},
    {"temperature": 1e-5},
    {"temperature": 1e-38},
    {"temperature": 1.0, "top_p": 1e-4},
    {"temperature": 0, "top_p": 0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "min_p": 1.0},
]


@pytest.mark.parametrize("sampling", GREEDY_LIKE, ids=str)
def test_c13_tiny_values_are_greedy(chain_server: RunningServer, sampling: dict[str, Any]) -> None:
    fields = {**sampling, "max_tokens": 8, "ignore_eos": True, "logprobs": 1, "seed": 3}
    answer = chain_server.client.generate(
        "chain",
        {
            "text_input": "x",
            "exclude_input_in_output": True,
            "return_logprobs": True,
            "sampling_parameters": json.dumps(fields),
        },
    )
    assert answer.status == 200, answer.body
    assert answer.json()["text_output"] == cycle_text(8)
    logprobs = [next(iter(entry.values()))["logprob"] for entry in json.loads(answer.json()["logprobs"])]
    assert len(logprobs) == 8 and all(-1.0 < logprob <= 0.0 for logprob in logprobs)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"temperature": -0.1}', "temperature: got -0.1"),
        ('{"top_p": 1.5}', "top_p: got 1.5"),
        ('{"temperature": NaN}', "NaN"),
        ('{"temperature": Infinity}', "Infinity"),
        ('{"temperature": -Infinity}', "-Infinity"),
        ('{"temperature": 1e999}', "temperature"),
        ('{"top_k": 1.5}', "top_k: got 1.5"),
        ('{"min_p": -1e-9}', "min_p"),
        ('{"seed": 36893488147419103232}', "seed"),
        ('{"max_tokens": 1e400}', "max_tokens"),
    ],
)
def test_c13_values_out_of_range_are_refused(chain_server: RunningServer, post: Post, text: str, field: str) -> None:
    answer = chain_server.client.generate("chain", {"text_input": "x", "sampling_parameters": text})
    assert (answer.status, field in answer.json().get("error", "")) == (400, True), answer.body


def num_prompt_tokens(server: RunningServer, raw: bytes | str) -> int:
    inputs = {"text_input": np.array([raw], object), "max_tokens": 1, "return_num_input_tokens": True}
    answer = ask(server.grpc_address, "chain", inputs)
    assert answer.errors == []
    return int(answer.output("num_input_tokens")[0])


def test_c16_nul_bytes_reach_the_tokenizer(chain_server: RunningServer, post: Post) -> None:
    assert num_prompt_tokens(chain_server, b"ab") == 2
    assert num_prompt_tokens(chain_server, b"ab\x00") == 3
    assert num_prompt_tokens(chain_server, b"\x00") == 1
    assert num_prompt_tokens(chain_server, "ab") == 2
    assert num_prompt_tokens(chain_server, b"ab\x00\x00") == 4


@pytest.mark.parametrize("raw", [b"\xff\xfeabc", b"\xf0\x9f\x8c", b"ok\xc3", b"\xed\xa0\x80"])
def test_c16_invalid_utf8_is_refused(chain_server: RunningServer, post: Post, raw: bytes) -> None:
    """Policy: never replaced in silence; the error names the byte."""
    for field in ("text_input", "stop_words"):
        inputs = {"text_input": "x", field: np.array([raw], object)}
        answer = ask(chain_server.grpc_address, "chain", inputs)
        assert f"{field}: got" in answer.errors[0] and "must be valid UTF-8" in answer.errors[0]


@pytest.mark.parametrize("text", ["ab\u0000", "héllo 🌶", "👩‍👩‍👧 ď.", 'quote " and \\'])
def test_c16_the_repeated_prompt_is_byte_equal(chain_server: RunningServer, post: Post, text: str) -> None:
    inputs = {"text_input": text, "max_tokens": 1, "temperature": 0.0, "stream": False}
    answer = ask(chain_server.grpc_address, "chain", inputs)
    assert answer.text.startswith(text)
    status, http = generate(chain_server, text_input=text, exclude_input_in_output=False, max_tokens=1)
    assert (status, http["text_output"]) == (200, answer.text)


def test_c16_fixed_width_numpy_texts_work(chain_server: RunningServer, post: Post) -> None:
    inputs = {"text_input": np.array([b"abcd"], "S4"), "max_tokens": 1, "return_num_input_tokens": True}
    answer = ask(chain_server.grpc_address, "chain", inputs)
    assert answer.output("num_input_tokens") == [4]


@pytest.mark.parametrize("raw", [b"1234567", b"\xff\xff\xff\x7fabc", b"", struct.pack("<I", 3) + b"ab"])
def test_c16_a_buffer_without_its_length_prefix_fails_alone(
    chain_server: RunningServer, post: Post, raw: bytes
) -> None:
    from tritonclient.grpc import InferenceServerClient, InferInput

    results: list[Any] = []
    tensor = InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"x"], object))
    tensor._raw_content = raw  # what the client library would never send
    with InferenceServerClient(chain_server.grpc_address) as client:
        client.start_stream(lambda result, error: results.append(error or result))
        client.async_stream_infer("chain", [tensor])
        wait_for(lambda: results, what="an answer")
        client.stop_stream()
    assert "InferenceServerException" in type(results[0]).__name__
