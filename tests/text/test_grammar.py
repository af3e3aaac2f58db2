"""Structured output: whatever the logits say, the text fits the guide."""

from __future__ import annotations

import builtins
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trtdecode.errors import InvalidRequest
from trtdecode.executor.base import BatchResult
from trtdecode.request import Request
from trtdecode.sampling.params import SamplingParams
from trtdecode.sampling.sampler import Sampler
from trtdecode.text.grammar import Grammars
from trtdecode.text.tokenizer import Tokenizer

pytest.importorskip("llguidance")
VOCAB, EOS = 49152, 2


@pytest.fixture(scope="session")
def grammars(smollm2: Tokenizer) -> Grammars:
    return Grammars(smollm2, VOCAB, [EOS])


def guided_request(grammars: Grammars, seed: int = 0, **fields: Any) -> Request:
    params = SamplingParams.from_mapping(fields, spec_vocab_size=VOCAB)
    return Request([1], params, lambda _event: None, seed, 0.0, guide=grammars.guide(params))


def generate(
    request: Request, rng: np.random.Generator, limit: int = 4000, favoured: dict[int, float] | None = None
) -> None:
    """Draws from random logits until EOS: a model that knows nothing, so the guide alone makes the text."""
    sampler = Sampler([EOS])
    for _ in range(limit):
        logits = rng.normal(0, 2, (1, VOCAB)).astype(np.float32)
        for token_id, logit in (favoured or {}).items():
            logits[0, token_id] = logit
        result = sampler.sample(BatchResult(logits), [request])
        assert result.errors == {}
        request.output_ids.append(result.token_ids[0])
        if result.token_ids[0] == EOS:
            return
    raise AssertionError(f"no end within {limit} tokens")


def text_of(tokenizer: Tokenizer, request: Request) -> str:
    return tokenizer.decode(request.output_ids)


def test_regular_expression(grammars: Grammars, smollm2: Tokenizer) -> None:
    for seed in range(5):
        request = guided_request(grammars, seed, guided_regex=r"[a-f]{3}-\d{1,4}")
        generate(request, np.random.default_rng(seed))
        assert re.fullmatch(r"[a-f]{3}-\d{1,4}", text_of(smollm2, request))


CHOICES = ['a "quoted" one', "back\\slash", "new\nline", "🌶 é", "/re/"]


def test_choices_are_taken_literally(grammars: Grammars, smollm2: Tokenizer) -> None:
    seen = set()
    for seed in range(30):
        request = guided_request(grammars, seed, guided_choice=CHOICES)
        generate(request, np.random.default_rng(seed))
        seen.add(text_of(smollm2, request))
    assert seen <= set(CHOICES)
    assert len(seen) >= 3


@pytest.mark.parametrize("grammar", ['start: "yes" | "no" "!"+', 'root ::= "yes" | "no" "!"+'], ids=["lark", "gbnf"])
def test_grammars_in_both_notations(grammars: Grammars, smollm2: Tokenizer, grammar: str) -> None:
    for seed in range(5):
        request = guided_request(grammars, seed, guided_grammar=grammar)
        generate(request, np.random.default_rng(seed), favoured={EOS: 8.0})
        assert re.fullmatch("yes|no!+", text_of(smollm2, request))


def test_greedy_and_seeded_requests_are_guided_too(grammars: Grammars, smollm2: Tokenizer) -> None:
    for fields in ({"temperature": 0}, {"top_k": 5}, {"top_p": 0.5}, {"frequency_penalty": 1.0, "logprobs": 1}):
        request = guided_request(grammars, guided_regex="(ab){4}", **fields)
        generate(request, np.random.default_rng(1))
        assert text_of(smollm2, request) == "abababab"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"guided_regex": "(["}, "guided_regex: got '(['; is not valid: "),
        ({"guided_json": {"type": "strange"}}, "is not valid: "),
        ({"guided_json": {"not": {"type": "string"}}}, "Unimplemented keys"),
        ({"guided_grammar": "start: nowhere"}, "unknown name"),
        ({"guided_grammar": "@@@"}, "guided_grammar: got '@@@'; is not valid"),
        ({"guided_regex": "\ud800"}, "guided_regex: got '\\ud800'; is not valid"),
    ],
)
def test_a_guide_that_is_not_valid_is_the_callers_error(grammars: Grammars, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        guided_request(grammars, **fields)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_library_the_caller_is_told(smollm2: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "llguidance":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InvalidRequest, match=r"pip install trtdecode\[guided\]"):
        guided_request(Grammars(smollm2, VOCAB, [EOS]), guided_regex="a")


def test_no_guide_without_one(grammars: Grammars) -> None:
    assert grammars.guide(SamplingParams()) is None


def test_samples_have_places_of_their_own(grammars: Grammars, smollm2: Tokenizer) -> None:
    first, second = (guided_request(grammars, guided_regex="ab") for _ in range(2))
    generate(first, np.random.default_rng(0))
    assert text_of(smollm2, first) == "ab"
    generate(second, np.random.default_rng(0))
    assert text_of(smollm2, second) == "ab"


def test_a_mask_is_computed_once_a_position(grammars: Grammars) -> None:
    request = guided_request(grammars, guided_regex="[ab]+")
    request.guide.prepare([])
    request.guide.mask[:] = 7
    request.guide.prepare([])
    assert (request.guide.mask == 7).all()


def test_output_taken_back_rolls_back(grammars: Grammars, smollm2: Tokenizer) -> None:
    """A mask depends on the tokens alone, however they came and went."""
    request = guided_request(grammars, guided_json={"type": "array", "items": {"type": "integer"}})
    request.guide.prepare([])
    generate(request, np.random.default_rng(3))
    masks = []
    for length in (0, 3, 1, len(request.output_ids), 2):
        output = request.output_ids[:length]
        request.guide.prepare(output)
        fresh = guided_request(grammars, guided_json={"type": "array", "items": {"type": "integer"}}).guide
        fresh.prepare(output)
        assert (request.guide.mask == fresh.mask).all()
        masks.append(fresh.mask.copy())
    assert (masks[0] != masks[1]).any()


def test_another_token_at_the_same_position_is_noticed(grammars: Grammars, smollm2: Tokenizer) -> None:
    a, b = smollm2.encode("a")[0], smollm2.encode("b")[0]
    guide = guided_request(grammars, guided_regex="ac|bd").guide
    guide.prepare([a])
    with_a = guide.mask.copy()
    guide.prepare([b])
    assert (guide.mask != with_a).any()


def test_only_the_end_follows_a_complete_text(grammars: Grammars, smollm2: Tokenizer) -> None:
    guide = guided_request(grammars, guided_regex="a").guide
    guide.prepare(smollm2.encode("a"))
    allowed = np.flatnonzero(np.unpackbits(guide.mask.view(np.uint8), bitorder="little"))
    assert allowed.tolist() == [EOS]
    assert guide.is_complete


def test_min_tokens_does_not_outlive_the_grammar(grammars: Grammars, smollm2: Tokenizer) -> None:
    request = guided_request(grammars, guided_regex="a{1,3}", min_tokens=50)
    generate(request, np.random.default_rng(0), favoured={EOS: 50.0})
    assert text_of(smollm2, request) == "aaa"


def test_going_on_after_the_end_is_harmless(grammars: Grammars) -> None:
    """ignore_eos: the grammar has ended, so that only EOS is left."""
    request = guided_request(grammars, guided_regex="a")
    generate(request, np.random.default_rng(0))
    sampler = Sampler([EOS])
    for _ in range(3):
        result = sampler.sample(BatchResult(np.zeros((1, VOCAB), np.float32)), [request])
        assert (result.token_ids, result.errors) == ([EOS], {})
        request.output_ids.append(EOS)


def test_a_token_outside_the_grammar_ends_that_request_only(grammars: Grammars, smollm2: Tokenizer) -> None:
    """It cannot be sampled; should one get in all the same, the neighbours go on."""
    broken, well = (guided_request(grammars, guided_regex="ab", temperature=0) for _ in range(2))
    broken.output_ids = smollm2.encode("z")
    result = Sampler([EOS]).sample(BatchResult(np.zeros((2, VOCAB), np.float32)), [broken, well])
    assert list(result.errors) == [0]
    assert "guided_regex: got 'output token 1'; cannot go on: " in str(result.errors[0])


def test_special_tokens_are_not_text(grammars: Grammars) -> None:
    """Control tokens spell text that a string may hold, but are not that text."""
    guide = guided_request(grammars, guided_regex=".*").guide
    guide.prepare([])
    allowed = np.unpackbits(guide.mask.view(np.uint8), bitorder="little")
    assert np.flatnonzero(allowed[:17]).tolist() == [EOS]


# Schemas --------------------------------------------------------------------------------------------------------

PROPERTY = st.text('abcé "\\_🌶', min_size=1, max_size=4)
SMALL = st.integers(0, 9)
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span}, st.integers(-99, 99), SMALL
    ),
    st.builds(lambda high: {"type": "number", "minimum": 0, "maximum": high + 1}, SMALL),
    st.builds(lambda low, span: {"type": "string", "minLength": low, "maxLength": low + span}, SMALL, SMALL),
    st.just({"type": "string", "pattern": "^[a-c]{2,5}$"}),
    st.lists(st.integers(-5, 5) | PROPERTY | st.none(), min_size=1, max_size=4).map(lambda values: {"enum": values}),
    (st.integers(-5, 5) | PROPERTY).map(lambda value: {"const": value}),
)


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(PROPERTY, inner, max_size=4).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties)) if properties else st.nothing()).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required),
                "additionalProperties": False,
            }
        )
    )


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        objects(inner),
        st.builds(lambda items, count: {"type": "array", "items": items, "maxItems": count}, inner, st.integers(0, 3)),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=6,
)


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """JSON Schema's meaning for the keywords that `SCHEMAS` draws."""
    if "anyOf" in schema:
        return any(fits(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return any(type(value) is type(option) and value == option for option in schema["enum"])
    if "const" in schema:
        return bool(value == schema["const"])
    kind = schema["type"]
    if kind == "object":
        return (
            isinstance(value, dict)
            and set(schema["required"]) <= set(value) <= set(schema["properties"])
            and all(fits(item, schema["properties"][key]) for key, item in value.items())
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and len(value) <= schema["maxItems"]
            and all(fits(v, schema["items"]) for v in value)
        )
    if kind == "string":
        pattern = schema.get("pattern", "(?s).*")
        return (
            isinstance(value, str)
            and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 99)
            and bool(re.search(pattern, value))
        )
    if kind in ("integer", "number"):
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        return (
            numeric
            and schema["minimum"] <= value <= schema["maximum"]
            and (kind == "number" or float(value).is_integer())
        )
    return value is None if kind == "null" else isinstance(value, bool)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_200_schemas_give_valid_json_every_time(
    grammars: Grammars, smollm2: Tokenizer, schema: dict[str, Any], seed: int
) -> None:
    request = guided_request(grammars, seed, guided_json=schema)
    generate(request, np.random.default_rng(seed))
    value = json.loads(text_of(smollm2, request))
    assert fits(value, schema), value
    assert not isinstance(value, float) or math.isfinite(value)
