"""What clients may send, and what each refusal says (cases C07, C13, C20, and the fuzz neighbours of them)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trtdecode.errors import InvalidRequest
from trtdecode.sampling.params import SamplingParams
from trtdecode.sampling.parse import KNOWN_KEYS

VOCAB = 100


def parse(**fields: Any) -> SamplingParams:
    return SamplingParams.from_mapping(fields, spec_vocab_size=VOCAB)


def test_nothing_given_is_the_defaults() -> None:
    assert parse() == SamplingParams()
    assert parse(temperature=None, stop=None, seed=None) == SamplingParams()


def test_defaults_of_the_model_are_kept() -> None:
    defaults = SamplingParams(max_tokens=16, temperature=0.5)
    assert SamplingParams.from_mapping({"top_k": 3}, spec_vocab_size=VOCAB, defaults=defaults) == SamplingParams(
        max_tokens=16, temperature=0.5, top_k=3
    )


def test_sample_client_of_tritons_vllm_backend_sends_numbers_as_strings() -> None:
    params = parse(temperature="0.1", top_p="0.95", max_tokens="100", ignore_eos="true")
    assert params == SamplingParams(temperature=0.1, top_p=0.95, max_tokens=100, ignore_eos=True)


def test_what_tritons_openai_front_end_sends() -> None:
    chat = {
        "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {"5": -100}, "logprobs": False, "n": 1,
        "temperature": 1, "top_p": 1, "seed": -7, "stop": ["a"], "max_tokens": 16, "top_logprobs": 0,
    }  # fmt: skip
    params = SamplingParams.from_mapping(json.loads(json.dumps(chat)), spec_vocab_size=VOCAB)
    assert params == SamplingParams(logit_bias=((5, -100.0),), seed=2**64 - 7, stop=("a",), max_tokens=16)
    assert parse(best_of=1, use_beam_search=False, length_penalty=1.0) == SamplingParams()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"logprobs": True, "top_logprobs": 5}, 5),
        ({"logprobs": True}, 0),
        ({"logprobs": False}, None),
        ({"logprobs": 3}, 3),
        ({"logprobs": 3, "top_logprobs": 3}, 3),
    ],
)
def test_both_forms_of_logprobs(fields: dict[str, Any], expected: int | None) -> None:
    assert parse(**fields).logprobs == expected


@pytest.mark.parametrize(
    ("stop", "expected"), [(",", (",",)), ([","], (",",)), ([",", "."], (",", ".")), ([], ()), (None, ())]
)
def test_forms_of_stop(stop: Any, expected: tuple[str, ...]) -> None:
    assert parse(stop=stop).stop == expected
    assert parse(stop_words=stop).stop == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": {"type": "object"}},
        {"guided_json": '{"type": "object"}'},
        {"structured_outputs": {"json": {"type": "object"}}},
        {"structured_outputs": {"json_object": True}},
        {"guided_decoding": json.dumps({"json": '{"type":"object"}', "backend": None, "regex": None})},
    ],
)
def test_forms_of_a_guide(fields: dict[str, Any]) -> None:
    params = parse(**fields)
    assert params.guided_json == '{"type":"object"}'
    assert params.guided


@pytest.mark.parametrize(
    "fields", [{"temperature": 0}, {"temperature": 1e-38}, {"temperature": 1e-3}, {"top_k": 1}, {"top_p": 0}]
)
def test_greedy(fields: dict[str, Any]) -> None:
    assert parse(**fields).greedy


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.01}, {"top_k": -1}, {"top_k": 2}, {"top_p": 1e-9}])
def test_not_greedy(fields: dict[str, Any]) -> None:
    assert not parse(**fields).greedy


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, "temperature: got -0.1; must be in [0, 10000]"),
    ({"temperature": float("nan")}, "temperature: got nan; must be a finite number"),
    ({"temperature": float("inf")}, "temperature: got inf; must be a finite number"),
    ({"temperature": "nan"}, "temperature: got 'nan'; must be a number"),
    ({"temperature": 10**400}, "temperature: got "),
    ({"temperature": True}, "temperature: got True; must be a number"),
    ({"temperature": [1]}, "temperature: got [1]; must be a number"),
    ({"top_p": 1.5}, "top_p: got 1.5; must be in [0, 1]"),
    ({"top_p": -1e-9}, "top_p: got -1e-09; must be in [0, 1]"),
    ({"min_p": 1.1}, "min_p: got 1.1; must be in [0, 1]"),
    ({"top_k": -2}, "top_k: got -2; must be -1 or 0 (all), or at least 1"),
    ({"top_k": 1.5}, "top_k: got 1.5; must be an integer"),
    ({"frequency_penalty": -2.1}, "frequency_penalty: got -2.1; must be in [-2, 2]"),
    ({"presence_penalty": 3}, "presence_penalty: got 3; must be in [-2, 2]"),
    ({"repetition_penalty": 0}, "repetition_penalty: got 0; must be in [0.01, 100]"),
    ({"max_tokens": 0}, "max_tokens: got 0; must be in [1, 2147483647]"),
    ({"max_tokens": -1}, "max_tokens: got -1; must be in [1, 2147483647]"),
    ({"max_tokens": "1e3"}, "max_tokens: got '1e3'; must be an integer"),
    ({"max_tokens": 2**40}, "max_tokens: got 1099511627776; must be in [1, 2147483647]"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens: got 5; must be at most max_tokens (4)"),
    ({"n": 0}, "n: got 0; must be in [1, 128]"),
    ({"n": 10**6}, "n: got 1000000; must be in [1, 128]"),
    ({"seed": 2**64}, "seed: got 18446744073709551616; must be in [-9223372036854775808, 18446744073709551615]"),
    ({"logprobs": 21}, "logprobs: got 21; must be in [0, 20]"),
    ({"top_logprobs": 2}, "top_logprobs: got 2; needs logprobs true"),
    ({"logprobs": False, "top_logprobs": 2}, "top_logprobs: got 2; needs logprobs true"),
    ({"logprobs": 1, "top_logprobs": 2}, "top_logprobs: got 2; logprobs says 1; send one of the two"),
    ({"stop": [""]}, "stop: got ''; must not be empty: an empty string matches everywhere"),
    ({"stop": [",", ""]}, "stop: got ''; must not be empty"),
    ({"stop": ""}, "stop: got ''; must not be empty"),
    ({"stop": [1]}, "stop: got 1; must be a string"),
    ({"stop": {"a": 1}}, "stop: got {'a': 1}; must be a string or a list of strings"),
    ({"stop": ["a"] * 2049}, "stop: got '2049 strings'; must be at most 2048 strings"),
    ({"stop": ["a" * 1025]}, "must be at most 1024 characters, not 1025"),
    ({"stop": ["a"], "stop_words": ["b"]}, "stop_words: got ['b']; is another name of 'stop'; send one of the two"),
    ({"stop_token_ids": [VOCAB]}, "stop_token_ids: got 100; must be a token id in [0, 100)"),
    ({"stop_token_ids": 5}, "stop_token_ids: got 5; must be a list of token ids"),
    ({"logit_bias": {"100": 1}}, "logit_bias: got '100'; must be a token id in [0, 100)"),
    ({"logit_bias": {"5": 101}}, "logit_bias[5]: got 101; must be in [-100, 100]"),
    ({"logit_bias": {"5": 1, "05": 2}}, "names a token id twice"),
    ({"logit_bias": [[5, 1]]}, "logit_bias: got [[5, 1]]; must be an object of token id -> bias"),
    ({"ignore_eos": 1}, "ignore_eos: got 1; must be true or false"),
    ({"best_of": 2}, "best_of: got 2; is not supported; leave it out or send 1"),
    ({"use_beam_search": True}, "use_beam_search: got True; is not supported; leave it out or send False"),
    ({"temprature": 1}, "temprature: got 1; is not a sampling parameter; did you mean 'temperature'?"),
    ({"max_token": 1}, "max_token: got 1; is not a sampling parameter; did you mean 'max_tokens'?"),
    ({"zzz": 1}, "zzz: got 1; is not a sampling parameter; known: "),
    ({"guided_json": "{"}, "guided_json: got '{'; must be JSON ("),
    ({"guided_json": '{"a": NaN}'}, "guided_json: got '{\"a\": NaN}'; must be JSON ("),
    ({"guided_json": "3"}, "guided_json: got '3'; must be a JSON schema (an object)"),
    ({"guided_regex": ""}, "guided_regex: got ''; must have 1 to 262144 characters, not 0"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice: got ('b',); excludes guided_regex; send one guide"),
    ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml: got 'a'; must be one of json, regex"),
    ({"structured_outputs": 3}, "structured_outputs: got 3; must be an object with one of json, regex"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "text"), REFUSED, ids=[str(index) for index in range(len(REFUSED))])
def test_refusals_name_field_value_and_limit(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert text in str(caught.value)
    assert len(str(caught.value)) < 1500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(KNOWN_KEYS)) | st.text(max_size=8), JSON, max_size=5))
def test_anything_is_parsed_or_refused(mapping: dict[str, Any]) -> None:
    try:
        params = SamplingParams.from_mapping(mapping, spec_vocab_size=VOCAB)
    except InvalidRequest as error:
        assert error.field
    else:
        assert 0.0 <= params.temperature <= 1e4
        assert all(0 <= token < VOCAB for token in params.stop_token_ids)
        assert all(params.stop)
