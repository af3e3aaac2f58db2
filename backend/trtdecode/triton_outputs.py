"""`Part` -> output tensors as numpy arrays. Names, shapes and meaning are those of Triton's vLLM backend.

While streaming, `text_output`, `logprobs`, `num_output_tokens` and `output_ids` are what is new since the previous
response; `num_input_tokens` is in every response; `cumulative_logprob` is the total so far; `finish_reason` is "None"
until a sample ends; `prompt_logprobs` comes once, with the first token. With `n` samples each tensor has n elements,
in the order of the samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trtdecode.request import TokenLogprob
from trtdecode.responder import Delta, Part
from trtdecode.triton_inputs import Call

MIN_LOGPROB = -9999.0  # what stands for minus infinity in JSON (OpenAI's convention)


class OutputSpec(NamedTuple):
    """One output tensor."""

    name: str
    data_type: str
    dims: tuple[int, ...]


OUTPUTS = (
    OutputSpec("text_output", "TYPE_STRING", (-1,)),
    OutputSpec("finish_reason", "TYPE_STRING", (-1,)),
    OutputSpec("cumulative_logprob", "TYPE_FP32", (-1,)),
    OutputSpec("logprobs", "TYPE_STRING", (-1,)),
    OutputSpec("prompt_logprobs", "TYPE_STRING", (-1,)),
    OutputSpec("num_input_tokens", "TYPE_UINT32", (1,)),
    OutputSpec("num_output_tokens", "TYPE_UINT32", (-1,)),
    OutputSpec("output_ids", "TYPE_INT32", (-1,)),
)


def render(
    call: Call, part: Part, *, num_input_tokens: int, batched: bool, decode: Callable[[int], str]
) -> dict[str, npt.NDArray[Any]]:
    """The tensors of one response.

    Args:
        batched: add the leading batch dimension of 1.
        decode: token id -> its text, for `logprobs`.
    """
    deltas = part.deltas
    prefix = call.prompt if call.echo and part.is_first and isinstance(call.prompt, str) else ""
    arrays: dict[str, npt.NDArray[Any]] = {"text_output": _strings([prefix + delta.text for delta in deltas])}
    if call.return_finish_reason:
        arrays["finish_reason"] = _repeated(tuple(_finish_reason(delta) for delta in deltas), np.object_, batched)
    if call.return_cumulative_logprob:
        arrays["cumulative_logprob"] = np.array([delta.cumulative_logprob for delta in deltas], np.float32)
    if call.return_logprobs:
        wanted = call.params.logprobs is not None
        arrays["logprobs"] = _strings([logprobs_json(d.logprobs, decode) if wanted else "null" for d in deltas])
    prompt = [delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None]
    if prompt:
        arrays["prompt_logprobs"] = _strings([logprobs_json(entry, decode) for entry in prompt])
    if call.return_num_input_tokens:
        arrays["num_input_tokens"] = _repeated((num_input_tokens,), np.uint32, batched)
    if call.return_num_output_tokens:
        arrays["num_output_tokens"] = _repeated(tuple(len(delta.token_ids) for delta in deltas), np.uint32, batched)
    if call.return_output_ids:
        arrays["output_ids"] = np.array(deltas[0].token_ids, np.int32)
    if batched:
        return {name: array if array.ndim > 1 else array.reshape(1, -1) for name, array in arrays.items()}
    return arrays


@lru_cache(128)
def _repeated(values: tuple[Any, ...], dtype: Any, batched: bool) -> npt.NDArray[Any]:
    """The same read-only array whenever these values come again, as they do in most responses."""
    array = _strings(values) if dtype is np.object_ else np.array(values, dtype)
    array = array.reshape(1, -1) if batched else array
    array.flags.writeable = False
    return array


def _strings(texts: Sequence[str]) -> npt.NDArray[Any]:
    array = np.empty(len(texts), np.object_)
    array[:] = [text.encode("utf-8") for text in texts]
    return array


def _finish_reason(delta: Delta) -> str:
    # "None" is what clients of the vLLM backend compare with.
    return "None" if delta.finish_reason is None else delta.finish_reason.value


def logprobs_json(logprobs: Sequence[TokenLogprob | None], decode: Callable[[int], str]) -> str:
    """A list with one object a token: token id -> {"logprob", "rank", "decoded_token"}, the chosen token first; null
    where there is none (the first token of a prompt)."""
    positions: list[dict[str, Any] | None] = []
    for chosen in logprobs:
        if chosen is None:
            positions.append(None)
            continue
        entries = {str(chosen.token_id): _entry(chosen.logprob, chosen.rank, chosen.token_id, decode)}
        for rank, (token_id, logprob) in enumerate(chosen.top, 1):
            entries.setdefault(str(token_id), _entry(logprob, rank, token_id, decode))
        positions.append(entries)
    return json.dumps(positions, ensure_ascii=False, allow_nan=False)


def _entry(logprob: float, rank: int, token_id: int, decode: Callable[[int], str]) -> dict[str, Any]:
    finite = logprob if math.isfinite(logprob) else MIN_LOGPROB
    return {"logprob": finite, "rank": rank, "decoded_token": decode(token_id)}
