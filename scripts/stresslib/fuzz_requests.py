"""Generated requests: every field of every end point, right and wrong, and bytes that are no request at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from trtdecode.gateway.schemas import ChatRequest, CompletionRequest
from trtdecode.sampling.parse import KNOWN_KEYS
from trtdecode.triton_inputs import INPUTS
from watched_server import MODEL

GENERATE = tuple(f"/v2/models/{MODEL}/{name}" for name in ("generate", "generate_stream"))
TRITON_PATHS = (
    *GENERATE,
    f"/v2/models/{MODEL}/infer",
    f"/v2/models/{MODEL}",
    f"/v2/models/{MODEL}/versions/1/generate",
)
GATEWAY_PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/models")


@dataclass(frozen=True, slots=True)
class Shot:
    """One generated request. `where` is "triton" or "gateway" (HTTP), or "socket" (bytes to Triton's HTTP port)."""

    where: str
    path: str
    body: bytes
    method: str = "POST"


_EDGES = st.sampled_from((0, -1, 1, 1.5, 2**31, 2**63, 2**64, -(2**63), 1e-38, 1e308, float("nan"), float("inf")))


def _seldom(odd: int, other: st.SearchStrategy[Any], usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """`usual`, but one time in `odd` the other."""
    return st.integers(1, odd).flatmap(lambda draw: other if draw == odd else usual)


def _numbers(low: float, high: float) -> st.SearchStrategy[Any]:
    return _seldom(8, _EDGES, st.floats(low, high))


def _integers(low: int, high: int) -> st.SearchStrategy[Any]:
    return _seldom(12, _EDGES, st.integers(low, high))


texts = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ("x", "", "x!", "x.", "x~", " ", "\0", "\ud83c", "a" * 5000, "{{ bos_token }}", "<|end|>", "🌶" * 50)
    ),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), _numbers(-5, 5), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)
schemas = st.one_of(
    st.just({"type": "object", "properties": {"a": {"enum": [1, "b", None]}}, "required": ["a"]}),
    st.just({"type": "array", "items": {"type": "integer"}, "maxItems": 3}),
    st.dictionaries(
        st.sampled_from(("type", "properties", "items", "enum", "$ref", "pattern")), json_values, max_size=3
    ),
)

_flags = st.booleans()
_counts = st.integers(0, 40)
#: Field -> what a client could mean. What is not here gets any JSON value.
MEANT: dict[str, st.SearchStrategy[Any]] = {
    "text_input": texts,
    "input_ids": st.lists(st.integers(-2, 400), max_size=60),
    "max_tokens": _counts,
    "min_tokens": _counts,
    "n": st.integers(0, 5),
    "temperature": _numbers(0, 2),
    "top_k": _integers(-1, 400),
    "top_p": _numbers(0, 1),
    "min_p": _numbers(0, 1),
    "repetition_penalty": _numbers(0, 3),
    "presence_penalty": _numbers(-2, 2),
    "frequency_penalty": _numbers(-2, 2),
    "seed": _integers(0, 2**40),
    "stop": st.lists(texts, max_size=4),
    "stop_words": st.lists(texts, max_size=4),
    "bad_words": st.lists(texts, max_size=4),
    "stop_token_ids": st.lists(st.integers(-1, 400), max_size=4),
    "logit_bias": st.dictionaries(st.integers(-1, 400).map(str), _numbers(-100, 100), max_size=4),
    "logprobs": st.integers(-1, 25),
    "prompt_logprobs": st.integers(-1, 25),
    "priority": st.integers(-3, 3),
    "timeout": _integers(-1, 10**7),
    "guided_json": schemas,
    "guided_regex": st.one_of(st.just("[ab]{1,5}"), texts),
    "guided_grammar": st.one_of(st.just('start: "one" | " two"'), texts),
    "guided_choice": st.lists(texts, max_size=3),
    "guided_decoding_guide_type": st.sampled_from(("json", "regex", "grammar", "choice", "poem")),
    "guided_decoding_guide": st.one_of(texts, schemas.map(json.dumps)),
    # Of the gateway.
    "model": st.sampled_from((MODEL, MODEL, MODEL, "absent", "../etc", "")),
    "prompt": st.one_of(texts, st.lists(texts, max_size=3), st.lists(st.integers(-1, 400), max_size=20)),
    "messages": st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(("user", "system", "tool", "x")), "content": texts}), max_size=3
    ),
    "max_completion_tokens": _counts,
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": json_values}),
    "response_format": st.fixed_dictionaries({"type": st.sampled_from(("text", "json_object", "json_schema"))}),
}
_FLAGS = {spec.name for spec in INPUTS if spec.data_type == "TYPE_BOOL"} | {
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "echo", "stream"),
}


def _value(name: str, odd: int) -> st.SearchStrategy[Any]:
    """Mostly what could be meant; one in `odd` is anything."""
    meant = _flags if name in _FLAGS else MEANT.get(name, json_values)
    return _seldom(odd, json_values, meant)


def _fields(names: tuple[str, ...], odd: int) -> st.SearchStrategy[dict[str, Any]]:
    """A few of the fields, and now and then one that nobody knows."""
    chosen = st.lists(st.sampled_from(names), max_size=5, unique=True)
    known = chosen.flatmap(lambda keys: st.fixed_dictionaries({key: _value(key, odd) for key in keys}))
    unknown = _seldom(12, st.dictionaries(st.text(max_size=10), json_values, max_size=1), st.just({}))
    return st.builds(lambda one, other: {**other, **one}, known, unknown)


def _as_bytes(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _generate_body() -> st.SearchStrategy[bytes]:
    tensors = _fields(tuple(spec.name for spec in INPUTS if spec.name != "sampling_parameters"), odd=25)
    sampling = _fields((*sorted(KNOWN_KEYS), *sorted(_FLAGS)), odd=12)

    def build(prompt: Any, fields: dict[str, Any], inside: dict[str, Any] | None, extra: dict[str, Any]) -> bytes:
        body = {"text_input": prompt, **fields, **extra}
        if "input_ids" in fields:
            del body["text_input"]
        body.setdefault("max_tokens", 8)
        if inside is not None:
            body["sampling_parameters"] = json.dumps(inside)
        return _as_bytes(body)

    extra = _seldom(5, _fields(("timeout", "priority", "logprobs", "parameters", "id"), odd=4), st.just({}))
    return st.builds(build, texts, tensors, st.one_of(st.none(), sampling), extra)


def _gateway_body(names: tuple[str, ...], required: tuple[str, ...]) -> st.SearchStrategy[bytes]:
    base = st.fixed_dictionaries({key: _value(key, 15) for key in required})
    return st.builds(
        lambda given, fields: _as_bytes({**given, **fields, "max_tokens": 8}), base, _fields(tuple(names), odd=8)
    )


def _damaged(bodies: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A good body cut, or with bytes put in."""

    def damage(body: bytes, place: float, junk: bytes, cut: bool) -> bytes:
        at = int(place * len(body))
        return body[:at] + junk + (b"" if cut else body[at:])

    return st.builds(damage, bodies, st.floats(0, 1), st.binary(max_size=6), st.booleans())


def shots() -> st.SearchStrategy[Shot]:
    """All kinds, the generate end points most."""
    body = _generate_body()
    completions = _gateway_body(tuple(CompletionRequest.model_fields), ("model", "prompt"))
    chats = _gateway_body(tuple(ChatRequest.model_fields), ("model", "messages"))
    raw = st.one_of(st.binary(max_size=200), _damaged(body), json_values.map(_as_bytes))
    generate = st.builds(Shot, st.just("triton"), st.sampled_from(GENERATE), body)
    kinds: list[Callable[[], st.SearchStrategy[Shot]]] = [
        *([lambda: generate] * 8),
        *([lambda: st.builds(Shot, st.just("triton"), st.sampled_from(TRITON_PATHS), raw)] * 3),
        *([lambda: st.builds(Shot, st.just("gateway"), st.just(GATEWAY_PATHS[0]), completions)] * 3),
        *([lambda: st.builds(Shot, st.just("gateway"), st.just(GATEWAY_PATHS[1]), chats)] * 2),
        lambda: st.builds(
            Shot,
            st.just("gateway"),
            st.sampled_from(GATEWAY_PATHS),
            st.one_of(raw, _damaged(completions)),
            st.sampled_from(("POST", "GET", "PUT")),
        ),
        lambda: st.builds(Shot, st.just("socket"), st.just(""), st.one_of(st.binary(max_size=300), _http_bytes(body))),
    ]
    return st.sampled_from(kinds).flatmap(lambda make: make())


def _http_bytes(bodies: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """An HTTP request with a wrong length, method or header."""

    def build(body: bytes, method: str, path: str, length: int, junk: bytes) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n".encode()
        return head + junk + b"\r\n\r\n" + body

    methods = st.sampled_from(("POST", "GET", "PRI", "", "post"))
    paths = st.sampled_from((*TRITON_PATHS, "/", "*", "/v2/../..", "/%00"))
    return st.builds(build, bodies, methods, paths, st.integers(-1, 10**12), st.binary(max_size=20))
