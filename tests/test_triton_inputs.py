"""Tensors and parameters of a request -> Call, without a server."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from trtdecode.errors import InvalidRequest
from trtdecode.sampling.params import SamplingParams
from trtdecode.triton_inputs import INPUTS, Call, read_call


def call(parameters: dict[str, Any] | None = None, *, batched: bool = False, **tensors: Any) -> Call:
    arrays = {"text_input": np.array([b"hi"], object)} if "input_ids" not in tensors else {}
    for name, value in tensors.items():
        if value is None:
            arrays.pop(name)
        else:
            arrays[name] = np.array(value if isinstance(value, list) else [value]) if not _is_array(value) else value
    if batched:
        arrays = {name: array.reshape(1, -1) for name, array in arrays.items()}
    return read_call(arrays, parameters or {}, batched=batched, vocab_size=1000)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def sampling(**fields: Any) -> np.ndarray[Any, Any]:
    return np.array([json.dumps(fields).encode()], object)


def test_the_eleven_tensors_of_the_openai_front_end() -> None:
    """Its default format: [1, 1] tensors of exactly these types."""
    tensors = {
        "text_input": np.array([["hello"]], object),
        "stream": np.array([[True]]),
        "max_tokens": np.array([[16]], np.int32),
        "stop_words": np.array([["a", "b"]], object),
        "top_p": np.array([[0.9]], np.float32),
        "frequency_penalty": np.array([[0.5]], np.float32),
        "presence_penalty": np.array([[0.25]], np.float32),
        "seed": np.array([[7]], np.uint64),
        "temperature": np.array([[0.8]], np.float32),
        "exclude_input_in_output": np.array([[True]]),
        "return_num_input_tokens": np.array([[True]]),
        "return_num_output_tokens": np.array([[True]]),
    }
    made = read_call(tensors, {}, batched=True, vocab_size=1000)
    assert made.params == SamplingParams(
        max_tokens=16, stop=("a", "b"), top_p=0.9, frequency_penalty=0.5, presence_penalty=0.25, seed=7, temperature=0.8
    )
    assert (made.prompt, made.stream, made.echo) == ("hello", True, False)
    assert made.return_num_input_tokens and made.return_num_output_tokens and not made.return_logprobs


def test_the_tensors_of_the_vllm_format() -> None:
    fields = {"max_tokens": 5, "temperature": 1.0, "n": 1, "stop": ["x"], "logit_bias": {"5": 10}, "logprobs": 2}
    made = call(stream=False, sampling_parameters=sampling(**fields), return_logprobs=True)
    assert made.params.logit_bias == ((5, 10.0),)
    assert (made.params.logprobs, made.params.stop, made.return_logprobs) == (2, ("x",), True)


def test_fp32_values_are_what_the_client_wrote() -> None:
    assert call(temperature=np.array([0.7], np.float32)).params.temperature == 0.7


def test_precedence_tensor_then_json_then_parameter() -> None:
    parameters = {"max_tokens": 1, "top_k": 1, "min_p": 0.1, "stream": True}
    made = call(parameters, sampling_parameters=sampling(max_tokens=2, top_k=2), max_tokens=np.array([3], np.int32))
    assert (made.params.max_tokens, made.params.top_k, made.params.min_p, made.stream) == (3, 2, 0.1, True)
    assert call({"stream": True}, stream=False).stream is False


def test_parameters_that_front_ends_add_are_ignored() -> None:
    added = {"triton_enable_empty_final_response": True, "traceparent": "00-ab", "x-request-id": "7", "sequence_id": 0}
    assert call(added) == call()
    assert call({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}).trace_id == (
        "4bf92f3577b34da6a3ce929d0e0e4736"
    )
    with pytest.raises(InvalidRequest, match="colour"):
        call({"colour": "red"})


def test_timeout_parameter_is_in_microseconds() -> None:
    assert call({"timeout": 1500}).timeout_ms == 1.5
    for wrong in (-1, "1", True, 1.5):
        with pytest.raises(InvalidRequest, match=r"timeout: got .* whole number of microseconds"):
            call({"timeout": wrong})


@pytest.mark.parametrize(
    ("batched", "stream", "exclude", "echo"),
    [
        (False, False, None, True),
        (False, True, None, False),
        (True, False, None, False),
        (False, False, True, False),
        (False, True, False, True),
        (True, False, False, True),
    ],
)
def test_when_the_prompt_is_repeated(batched: bool, stream: bool, exclude: bool | None, echo: bool) -> None:
    given = {} if exclude is None else {"exclude_input_in_output": exclude}
    assert call(batched=batched, stream=stream, **given).echo is echo


def test_token_ids_give_token_ids() -> None:
    made = call(input_ids=np.array([3, 4], np.int32))
    assert (made.prompt, made.return_output_ids, made.echo) == ([3, 4], True, False)
    assert call(input_ids=np.array([3], np.int32), n=np.array([2], np.int32)).return_output_ids is False


def test_nul_bytes_stay() -> None:
    assert call(text_input=np.array([b"ab\x00"], object)).prompt == "ab\x00"
    assert call(text_input=np.array(["\x00"], object)).prompt == "\x00"


@pytest.mark.parametrize("raw", [b"\xff\xfeabc", b"\xf0\x9f\x8c", b"\xc0\x80", b"\xed\xa0\x80"])
def test_invalid_utf8_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"text_input: .* must be valid UTF-8"):
        call(text_input=np.array([raw], object))
    with pytest.raises(InvalidRequest, match=r"stop_words: .* must be valid UTF-8"):
        call(stop_words=np.array([b"ok", raw], object))


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"max_tokens": np.array([1.0], np.float32)}, "max_tokens: got 'float32'; must have data type INT32"),
        ({"temperature": np.array([1], np.int32)}, "temperature: got 'int32'; must have data type FP32"),
        ({"stream": np.array([1], np.int32)}, "stream: got 'int32'; must have data type BOOL"),
        ({"text_input": np.array([1], np.int32)}, "text_input: got 'int32'; must have data type STRING"),
        ({"text_input": np.array([b"a", b"b"], object)}, r"text_input: got \[2\]; must have shape \[1\]"),
        ({"text_input": np.array([[b"a"]], object)}, r"text_input: got \[1, 1\]; must have shape \[1\]"),
        ({"max_tokens": np.array([], np.int32)}, r"max_tokens: got \[0\]; must have shape \[1\]"),
        ({"stop": np.array([[b"a"]], object)}, r"stop: got \[1, 1\]; must have shape \[k\]"),
        ({"colour": np.array([1], np.int32)}, "colour: got .* is not an input"),
        ({"text_input": None}, "text_input: got 'neither'; send exactly one"),
    ],
)
def test_wrong_dtype_or_shape(tensors: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        call(**tensors)


def test_wrong_shape_when_batched() -> None:
    arrays = {"text_input": np.array([[b"a"], [b"b"]], object)}
    with pytest.raises(InvalidRequest, match=r"text_input: got \[2, 1\]; must have shape \[1, 1\]"):
        read_call(arrays, {}, batched=True, vocab_size=10)
    with pytest.raises(InvalidRequest, match=r"must have shape \[1, 1\]"):
        read_call({"text_input": np.array([b"a"], object)}, {}, batched=True, vocab_size=10)


def test_the_guide_tensors_of_the_front_end() -> None:
    made = call(
        guided_decoding_guide_type=np.array([b"json_schema"], object),
        guided_decoding_guide=np.array([b'{"type": "object"}'], object),
    )
    assert json.loads(made.params.guided_json or "") == {"type": "object"}
    with pytest.raises(InvalidRequest, match="guided_decoding_guide_type"):
        call(guided_decoding_guide=np.array([b"x"], object))


@pytest.mark.parametrize("text", ["{", "[]", "3", "null", '{"temperature": NaN}', '{"stop": ["\\ud800"]}', "[" * 10**5])
def test_bad_sampling_parameters(text: str) -> None:
    with pytest.raises(InvalidRequest, match="sampling_parameters"):
        call(sampling_parameters=np.array([text.encode()], object))


def test_absent_sampling_parameters_and_an_empty_text_are_the_same() -> None:
    assert call(sampling_parameters=np.array([b""], object)) == call()


def test_each_input_is_declared_once() -> None:
    names = [spec.name for spec in INPUTS]
    assert len(names) == len(set(names))
