"""From what a client sent to `SamplingParams`: names, aliases, ranges. Every refusal is an InvalidRequest.

None means "not given", because OpenAI clients send nulls. `values.py` reads the single values.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any

from trtdecode.errors import InvalidRequest
from trtdecode.sampling.params import SamplingParams
from trtdecode.sampling.values import boolean, integer_in, json_of, number, number_in, strings

# Documented limits: what a request may ask for, so that none can occupy the loop by its parameters alone.
MAX_TOKENS = 2**31 - 1
MAX_N = 128  # OpenAI's
MAX_LOGPROBS = 20  # OpenAI's and vLLM's default
MAX_TEMPERATURE = 1e4
MAX_PENALTY = 2.0  # OpenAI's, for presence and frequency
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 1e-2, 1e2
MAX_STOP_STRINGS = 2048
MAX_STOP_CHARACTERS = 1024  # each
MAX_STOP_TOKEN_IDS = 1024
MAX_BAD_WORDS = 512
MAX_BAD_WORD_CHARACTERS = 256  # each
MAX_LOGIT_BIASES = 1024
MAX_LOGIT_BIAS = 100.0  # OpenAI's; enough to force or to ban a token
MAX_GUIDE_CHARACTERS = 262_144
MAX_GUIDE_CHOICES = 1024
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1
MAX_PRIORITY = 2**31 - 1

#: Other names that real clients send, and the field each one means.
ALIASES = {"stop_words": "stop", "random_seed": "seed", "max_completion_tokens": "max_tokens"}

#: vLLM's and OpenAI's parameters that we have in one value only: sent with it they change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "use_beam_search": (False,),
    "beam_width": (1,),
    "early_stopping": (False,),
    "length_penalty": (1, 0),
    "detokenize": (True,),
    "spaces_between_special_tokens": (True,),
}

_GUIDE_GROUPS = ("structured_outputs", "guided_decoding")  # objects of vLLM that hold one guide
_GUIDE_KINDS = ("json", "regex", "grammar", "choice")
_GUIDE_HINTS = {  # vLLM's hints to its own grammar engines; they do not change which texts are allowed
    "backend", "_backend", "backend_was_auto", "_backend_was_auto", "disable_fallback", "disable_any_whitespace",
    "disable_additional_properties", "whitespace_pattern", "structural_tag",
}  # fmt: skip


def parse_params(mapping: Mapping[str, Any], *, vocab_size: int, defaults: SamplingParams) -> SamplingParams:
    """See `SamplingParams.from_mapping`."""
    given = _flatten_guides({name: value for name, value in mapping.items() if value is not None})
    given = _rename(given)
    _take_chat_logprobs(given)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name in _TOKEN_FIELDS:
            fields[name] = _TOKEN_FIELDS[name](name, value, vocab_size)
        elif name in _FIELDS:
            fields[name] = _FIELDS[name](name, value)
        elif name in NEUTRAL:
            _require_neutral(name, value)
        else:
            raise InvalidRequest(_shown(name), value, _suggestion(name))
    params = dataclasses.replace(defaults, **fields)
    _check_together(params)
    return params


def _rename(given: dict[str, Any]) -> dict[str, Any]:
    for alias, name in ALIASES.items():
        if alias in given:
            if name in given and given[name] != given[alias]:
                raise InvalidRequest(alias, given[alias], f"is another name of {name!r}; send one of the two")
            given[name] = given.pop(alias)
    return given


def _take_chat_logprobs(given: dict[str, Any]) -> None:
    """OpenAI's chat form: `logprobs` a bool, `top_logprobs` the number. Ours and vLLM's: `logprobs` the number."""
    top = given.pop("top_logprobs", None)
    flag = given.get("logprobs")
    if isinstance(flag, bool):
        del given["logprobs"]
        if flag:
            given["logprobs"] = 0 if top is None else top
        elif top not in (None, 0):
            raise InvalidRequest("top_logprobs", top, "needs logprobs true")
    elif top is not None:
        if flag is None and top != 0:
            raise InvalidRequest("top_logprobs", top, "needs logprobs true")
        if flag is not None and flag != top:
            raise InvalidRequest("top_logprobs", top, f"logprobs says {flag!r}; send one of the two")


def _flatten_guides(given: dict[str, Any]) -> dict[str, Any]:
    """Takes `structured_outputs` / `guided_decoding` {"json": ...} apart into guided_json, ..."""
    for group in _GUIDE_GROUPS:
        if group not in given:
            continue
        value = given.pop(group)
        content = json_of(group, value) if isinstance(value, str) else value
        if not isinstance(content, Mapping):
            raise InvalidRequest(group, value, f"must be an object with one of {', '.join(_GUIDE_KINDS)}")
        for kind, guide in content.items():
            if guide is None or kind in _GUIDE_HINTS:
                continue
            if kind == "json_object":
                if boolean(f"{group}.json_object", guide):
                    given.setdefault("guided_json", {"type": "object"})
            elif kind in _GUIDE_KINDS:
                given[f"guided_{kind}"] = guide
            else:
                raise InvalidRequest(f"{group}.{_shown(kind)}", guide, f"must be one of {', '.join(_GUIDE_KINDS)}")
    return given


def _require_neutral(name: str, value: Any) -> None:
    neutral = NEUTRAL[name]
    read = boolean if isinstance(neutral[0], bool) else number
    if read(name, value) not in neutral:
        raise InvalidRequest(name, value, f"is not supported; leave it out or send {neutral[0]!r}")


def _shown(name: str) -> str:
    """An unknown key as an error's field: any text may be one."""
    return name if name.isidentifier() and len(name) <= 64 else f"{name[:64]!r}"


def _suggestion(name: str) -> str:
    known = [*_FIELDS, *_TOKEN_FIELDS, *ALIASES, *_GUIDE_GROUPS]
    nearest = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.6)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(sorted(known))}"
    return f"is not a sampling parameter; {hint}"


def _check_together(params: SamplingParams) -> None:
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequest("min_tokens", params.min_tokens, f"must be at most max_tokens ({params.max_tokens})")
    guides = [f"guided_{kind}" for kind in _GUIDE_KINDS if getattr(params, f"guided_{kind}")]
    if len(guides) > 1:
        raise InvalidRequest(guides[1], getattr(params, guides[1]), f"excludes {guides[0]}; send one guide")


# Fields of their own form ------------------------------------------------------------------------------------------


def _token_ids(name: str, value: Any, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidRequest(name, value, "must be a list of token ids")
    if len(value) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(name, f"{len(value)} ids", f"must be at most {MAX_STOP_TOKEN_IDS} ids")
    parse = integer_in(0, vocab_size - 1, f"must be a token id in [0, {vocab_size})")
    return tuple(parse(name, item) for item in value)


def _logit_bias(name: str, value: Any, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """OpenAI's object {"50256": -100}: token id -> bias. Sorted by id."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(name, value, "must be an object of token id -> bias")
    if len(value) > MAX_LOGIT_BIASES:
        raise InvalidRequest(name, f"{len(value)} entries", f"must be at most {MAX_LOGIT_BIASES} entries")
    parse_id = integer_in(0, vocab_size - 1, f"must be a token id in [0, {vocab_size})")
    parse_bias = number_in(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
    biases = {parse_id(name, token): parse_bias(f"{name}[{token}]", bias) for token, bias in value.items()}
    if len(biases) < len(value):
        raise InvalidRequest(name, dict(value), "names a token id twice")
    return tuple(sorted(biases.items()))


def _guide_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(name, value, "must be a string")
    if not 0 < len(value) <= MAX_GUIDE_CHARACTERS:
        raise InvalidRequest(name, value, f"must have 1 to {MAX_GUIDE_CHARACTERS} characters, not {len(value)}")
    return value


def _guided_json(name: str, value: Any) -> str:
    """A JSON schema as an object or as its text; kept as compact text."""
    schema = json_of(name, _guide_text(name, value)) if isinstance(value, str) else value
    if not isinstance(schema, Mapping | bool):
        raise InvalidRequest(name, value, "must be a JSON schema (an object)")
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(name, value, f"must be a JSON schema ({error})") from None
    return _guide_text(name, text)


def _seed(name: str, value: Any) -> int:
    """Negative seeds (OpenAI's range is a signed 64-bit integer) are taken modulo 2**64."""
    return integer_in(MIN_SEED, MAX_SEED)(name, value) % 2**64


def _top_k(name: str, value: Any) -> int:
    """-1 is vLLM's older word for "all"."""
    return max(integer_in(-1, MAX_TOKENS, "must be -1 or 0 (all), or at least 1")(name, value), 0)


_FIELDS: dict[str, Callable[[str, Any], Any]] = {
    "max_tokens": integer_in(1, MAX_TOKENS),
    "min_tokens": integer_in(0, MAX_TOKENS),
    "temperature": number_in(0.0, MAX_TEMPERATURE),
    "top_k": _top_k,
    "top_p": number_in(0.0, 1.0),
    "min_p": number_in(0.0, 1.0),
    "repetition_penalty": number_in(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
    "presence_penalty": number_in(-MAX_PENALTY, MAX_PENALTY),
    "frequency_penalty": number_in(-MAX_PENALTY, MAX_PENALTY),
    "seed": _seed,
    "n": integer_in(1, MAX_N),
    "stop": strings(MAX_STOP_STRINGS, MAX_STOP_CHARACTERS),
    "include_stop_str_in_output": boolean,
    "ignore_eos": boolean,
    "bad_words": strings(MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS),
    "logprobs": integer_in(0, MAX_LOGPROBS),
    "prompt_logprobs": integer_in(0, MAX_LOGPROBS),
    "skip_special_tokens": boolean,
    "priority": integer_in(-MAX_PRIORITY, MAX_PRIORITY),
    "guided_json": _guided_json,
    "guided_regex": _guide_text,
    "guided_grammar": _guide_text,
    "guided_choice": strings(MAX_GUIDE_CHOICES, MAX_STOP_CHARACTERS),
}

_TOKEN_FIELDS: dict[str, Callable[[str, Any, int], Any]] = {
    "stop_token_ids": _token_ids,
    "logit_bias": _logit_bias,
}

#: Every key that `SamplingParams.from_mapping` takes.
KNOWN_KEYS = frozenset((*_FIELDS, *_TOKEN_FIELDS, *ALIASES, *NEUTRAL, *_GUIDE_GROUPS, "top_logprobs"))
