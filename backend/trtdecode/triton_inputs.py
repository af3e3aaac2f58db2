"""Input tensors of a Triton request -> `Call`. Knows the names, shapes and types; not the server.

One precedence rule: an individual tensor beats the same key inside `sampling_parameters`, which beats the same name
among the request's parameters (unknown scalar JSON fields of `/generate` arrive there), which beats the default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from trtdecode.errors import InvalidRequest
from trtdecode.sampling.params import SamplingParams


class InputSpec(NamedTuple):
    """One input tensor. `key` is the sampling parameter it sets, or "" when `read_call` reads it itself."""

    name: str
    data_type: str  # Triton's word, as in config.pbtxt
    is_list: bool = False  # dims [-1] instead of [1]
    key: str = ""


INPUTS = (
    InputSpec("text_input", "TYPE_STRING"),
    InputSpec("input_ids", "TYPE_INT32", is_list=True),
    InputSpec("stream", "TYPE_BOOL"),
    InputSpec("streaming", "TYPE_BOOL"),
    InputSpec("sampling_parameters", "TYPE_STRING"),
    InputSpec("max_tokens", "TYPE_INT32", key="max_tokens"),
    InputSpec("min_tokens", "TYPE_INT32", key="min_tokens"),
    InputSpec("temperature", "TYPE_FP32", key="temperature"),
    InputSpec("top_k", "TYPE_INT32", key="top_k"),
    InputSpec("top_p", "TYPE_FP32", key="top_p"),
    InputSpec("min_p", "TYPE_FP32", key="min_p"),
    InputSpec("repetition_penalty", "TYPE_FP32", key="repetition_penalty"),
    InputSpec("presence_penalty", "TYPE_FP32", key="presence_penalty"),
    InputSpec("frequency_penalty", "TYPE_FP32", key="frequency_penalty"),
    InputSpec("seed", "TYPE_UINT64", key="seed"),
    InputSpec("stop_words", "TYPE_STRING", is_list=True, key="stop"),
    InputSpec("stop", "TYPE_STRING", is_list=True, key="stop"),
    InputSpec("bad_words", "TYPE_STRING", is_list=True, key="bad_words"),
    InputSpec("ignore_eos", "TYPE_BOOL", key="ignore_eos"),
    InputSpec("n", "TYPE_INT32", key="n"),
    InputSpec("guided_decoding_guide_type", "TYPE_STRING"),
    InputSpec("guided_decoding_guide", "TYPE_STRING"),
    InputSpec("exclude_input_in_output", "TYPE_BOOL"),
    InputSpec("return_finish_reason", "TYPE_BOOL"),
    InputSpec("return_logprobs", "TYPE_BOOL"),
    InputSpec("return_cumulative_logprob", "TYPE_BOOL"),
    InputSpec("return_num_input_tokens", "TYPE_BOOL"),
    InputSpec("return_num_output_tokens", "TYPE_BOOL"),
    InputSpec("return_output_ids", "TYPE_BOOL"),
)

_SPECS = {spec.name: spec for spec in INPUTS}
_DTYPES = {"TYPE_BOOL": "b", "TYPE_INT32": "iu", "TYPE_UINT64": "iu", "TYPE_FP32": "f", "TYPE_STRING": "OSU"}
_CALL_FIELDS = ("stream", "streaming", "exclude_input_in_output", *(s.name for s in INPUTS if s.name[:7] == "return_"))
_GUIDE_TYPES = {"json": "guided_json", "json_schema": "guided_json", "regex": "guided_regex"} | {
    "ebnf_grammar": "guided_grammar",
    "grammar": "guided_grammar",
    "choice": "guided_choice",
}
#: Parameters that Triton's front ends add by themselves.
_IGNORED_PREFIXES = ("triton_",)
_IGNORED_PARAMETERS = frozenset({"traceparent", "tracestate", "sequence_id", "sequence_start", "sequence_end"})
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_MAX_PARAMETERS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Call:
    """What one Triton request asks for."""

    prompt: str | list[int]
    params: SamplingParams
    stream: bool = False
    echo: bool = False  # the prompt's text precedes the answer
    timeout_ms: float = 0.0  # from the parameter `timeout` (microseconds, as Triton's own); 0: not given
    return_finish_reason: bool = False
    return_logprobs: bool = False
    return_cumulative_logprob: bool = False
    return_num_input_tokens: bool = False
    return_num_output_tokens: bool = False
    return_output_ids: bool = False
    trace_id: str = ""  # of the caller's W3C traceparent, 32 hexadecimal digits


def read_call(
    tensors: Mapping[str, npt.NDArray[Any]],
    parameters: Mapping[str, Any],
    *,
    batched: bool,
    vocab_size: int,
    defaults: SamplingParams | None = None,
) -> Call:
    """Validates one request's inputs.

    Args:
        tensors: input name -> array, [1] (or [k] for lists), with a leading batch dimension of 1 when `batched`.
        parameters: the request's parameters.
        batched: the model has max_batch_size >= 1.

    Raises:
        InvalidRequest: names the field, the value and the limit.
    """
    values = {name: _read_tensor(name, array, batched) for name, array in tensors.items()}
    prompt = _prompt(values)
    mapping = _scalar_parameters(parameters)
    timeout_ms = _timeout_ms(mapping.pop("timeout", None))
    options = {name: mapping.pop(name) for name in _CALL_FIELDS if name in mapping}
    from_json = _sampling_json(values.pop("sampling_parameters", mapping.pop("sampling_parameters", None)))
    for name in _CALL_FIELDS:
        if name in from_json:
            options[name] = from_json.pop(name)
    mapping.update(from_json)
    _apply_tensors(values, mapping, options)
    flags = {name: _flag(name, value) for name, value in options.items()}
    stream = _alias(flags, "stream", "streaming")
    # Triton's vLLM backend repeats the prompt unless told otherwise or streaming; clients of the batched shape
    # (the default format of Triton's OpenAI front end) never say and expect the answer alone.
    exclude = flags.pop("exclude_input_in_output", stream or batched)
    params = SamplingParams.from_mapping(mapping, spec_vocab_size=vocab_size, defaults=defaults)
    if flags.get("return_output_ids") and params.n > 1:
        raise InvalidRequest("return_output_ids", True, "needs n = 1, the samples have different lengths")
    if isinstance(prompt, list):  # token ids in, token ids out; there is no text to repeat
        flags.setdefault("return_output_ids", params.n == 1)
    echo = not exclude and isinstance(prompt, str)
    return Call(
        prompt, params, stream=stream, echo=echo, timeout_ms=timeout_ms, trace_id=_trace_id(parameters), **flags
    )


def _prompt(values: dict[str, Any]) -> str | list[int]:
    text, ids = values.pop("text_input", None), values.pop("input_ids", None)
    if (text is None) == (ids is None):
        given = "neither" if text is None else "both"
        raise InvalidRequest("text_input", given, "send exactly one of text_input and input_ids")
    prompt: str | list[int] = text if text is not None else ids
    return prompt


def _read_tensor(name: str, array: npt.NDArray[Any], batched: bool) -> Any:
    """One tensor as a bool, int, float, str, or a list of them."""
    spec = _SPECS.get(name)
    if spec is None:
        raise InvalidRequest(name, list(array.shape), f"is not an input; known: {', '.join(_SPECS)}")
    if array.dtype.kind not in _DTYPES[spec.data_type]:
        raise InvalidRequest(name, str(array.dtype), f"must have data type {spec.data_type[5:]}")
    rank = 2 if batched else 1
    expected = ("[1, k]" if spec.is_list else "[1, 1]") if batched else ("[k]" if spec.is_list else "[1]")
    leading_ok = not batched or (array.ndim > 0 and array.shape[0] == 1)
    if array.ndim != rank or not leading_ok or (not spec.is_list and array.size != 1):
        raise InvalidRequest(name, list(array.shape), f"must have shape {expected}: one prompt a request")
    items = array.reshape(-1).tolist()
    if spec.data_type == "TYPE_STRING":
        items = [_text(name, item) for item in items]
    elif spec.data_type == "TYPE_FP32":
        items = [_shortest(item) for item in items]
    return items if spec.is_list else items[0]


def _text(name: str, item: Any) -> str:
    if isinstance(item, str):
        return item
    try:
        return bytes(item).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(name, item, f"must be valid UTF-8 (byte {error.start})") from None


def _shortest(value: float) -> float:
    """0.8 as FP32 is 0.800000011920929: the shortest decimal of the FP32 value is what the client wrote."""
    return float(str(np.float32(value)))


def _refuse_constant(name: str) -> Callable[[str], NoReturn]:
    def refuse(constant: str) -> NoReturn:
        raise InvalidRequest(name, constant, "must hold finite numbers only")

    return refuse


def _sampling_json(text: Any) -> dict[str, Any]:
    if text is None or text == "":
        return {}
    field = "sampling_parameters"
    if isinstance(text, str) and len(text) > _MAX_PARAMETERS_BYTES:
        raise InvalidRequest(field, f"{len(text)} characters", f"must be at most {_MAX_PARAMETERS_BYTES}")
    try:
        content = json.loads(text, parse_constant=_refuse_constant(field))
        json.dumps(content, ensure_ascii=False).encode("utf-8")  # "\\ud800" is half a character: no text has it
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(field, text, f"must be a JSON object ({error})") from None
    if not isinstance(content, dict):
        raise InvalidRequest(field, text, "must be a JSON object")
    return content


def _scalar_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The request's parameters without those that Triton, tracing or forwarded HTTP headers add."""
    return {
        name: value
        for name, value in parameters.items()
        if not name.startswith(_IGNORED_PREFIXES) and name not in _IGNORED_PARAMETERS and "-" not in name
    }


def _trace_id(parameters: Mapping[str, Any]) -> str:
    """One that is not well-formed is no reason to refuse a request: W3C says to go on without."""
    match = _TRACEPARENT.fullmatch(str(parameters.get("traceparent", "")))
    return match[1] if match else ""


def _timeout_ms(value: Any) -> float:
    """`/generate` hands Triton's `timeout` on as a mere parameter; gRPC makes it `request.timeout()`."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest("timeout", value, "must be a whole number of microseconds, 0 or more")
    return value / 1000


def _apply_tensors(values: dict[str, Any], mapping: dict[str, Any], options: dict[str, Any]) -> None:
    """Individual tensors win over what `mapping` and `options` hold so far."""
    kind, guide = values.pop("guided_decoding_guide_type", None), values.pop("guided_decoding_guide", None)
    if kind is not None or guide is not None:
        if kind not in _GUIDE_TYPES or guide is None:
            raise InvalidRequest("guided_decoding_guide_type", kind, f"must be one of {', '.join(_GUIDE_TYPES)}")
        mapping[_GUIDE_TYPES[kind]] = guide
    if "stop" in values and "stop_words" in values and values["stop"] != values["stop_words"]:
        raise InvalidRequest("stop", values["stop"], "is another name of stop_words; send one of the two")
    for name, value in values.items():
        if name in _CALL_FIELDS:
            options[name] = value
        elif key := _SPECS[name].key:
            for other in ("stop_words",) if key == "stop" else ():
                mapping.pop(other, None)
            mapping[key] = value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(name, value, "must be true or false")
    return value


def _alias(flags: dict[str, bool], name: str, other: str) -> bool:
    """Takes `name` or its alias out of `flags`; false when neither is there."""
    first, second = flags.pop(name, None), flags.pop(other, None)
    if first is not None and second is not None and first != second:
        raise InvalidRequest(other, second, f"is another name of {name}; send one of the two")
    return bool(first if first is not None else second)
