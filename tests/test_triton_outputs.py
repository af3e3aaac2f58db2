"""Parts -> tensors: names, shapes and dtypes that clients of the vLLM backend read."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from trtdecode.request import FinishReason, TokenLogprob
from trtdecode.responder import Delta, Part
from trtdecode.sampling.params import SamplingParams
from trtdecode.triton_inputs import Call
from trtdecode.triton_outputs import OUTPUTS, logprobs_json, render


def arrays(call: Call, *deltas: Delta, first: bool = True, final: bool = True, batched: bool = False) -> dict[str, Any]:
    part = Part(list(deltas), first, final)
    return render(call, part, num_input_tokens=4, batched=batched, decode=lambda token_id: f"<{token_id}>")


FULL = Call(
    "say é",
    SamplingParams(logprobs=1),
    return_finish_reason=True,
    return_logprobs=True,
    return_cumulative_logprob=True,
    return_num_input_tokens=True,
    return_num_output_tokens=True,
    return_output_ids=True,
)


def test_every_output_has_the_declared_type() -> None:
    logprobs = [TokenLogprob(3, -1.0, 1)]
    delta = Delta("é", [3, 4], logprobs, finish_reason=FinishReason.STOP, cumulative_logprob=-1.5)
    made = arrays(FULL, delta)
    numpy_types = {"TYPE_STRING": np.object_, "TYPE_FP32": np.float32, "TYPE_UINT32": np.uint32, "TYPE_INT32": np.int32}
    assert set(made) == {spec.name for spec in OUTPUTS} - {"prompt_logprobs"}
    for spec in OUTPUTS:
        if spec.name in made:
            assert made[spec.name].dtype == numpy_types[spec.data_type]
            assert made[spec.name].ndim == 1
    assert made["text_output"].tolist() == ["é".encode()]
    assert made["finish_reason"].tolist() == [b"stop"]
    assert made["num_input_tokens"].tolist() == [4]
    assert made["num_output_tokens"].tolist() == [2]
    assert made["output_ids"].tolist() == [3, 4]
    assert made["cumulative_logprob"].tolist() == [-1.5]


def test_only_text_unless_asked() -> None:
    assert set(arrays(Call("x", SamplingParams()), Delta("a"))) == {"text_output"}


@pytest.mark.parametrize("batched", [False, True])
def test_what_comes_again_is_the_same_read_only_array(batched: bool) -> None:
    first, second = (arrays(FULL, Delta("a", [token_id]), batched=batched) for token_id in (1, 2))
    again = {name for name in first if first[name] is second[name]}
    assert again == {"finish_reason", "num_input_tokens", "num_output_tokens"}
    assert not any(first[name].flags.writeable for name in again)
    third = arrays(FULL, Delta("a", [1, 2], finish_reason=FinishReason.STOP), batched=batched)
    assert third["num_output_tokens"].ravel().tolist() == [2]
    assert third["finish_reason"].ravel().tolist() == [b"stop"]
    assert {first[name].shape for name in again} == {(1, 1) if batched else (1,)}


def test_a_batch_dimension_when_batched() -> None:
    made = arrays(FULL, Delta("a", [1]), batched=True)
    assert {array.shape for name, array in made.items() if name != "logprobs"} == {(1, 1)}


def test_the_prompt_precedes_the_first_delta_only() -> None:
    call = Call("ask ", SamplingParams(n=2), echo=True)
    assert arrays(call, Delta("a"), Delta("b"))["text_output"].tolist() == [b"ask a", b"ask b"]
    assert arrays(call, Delta("a"), Delta("b"), first=False)["text_output"].tolist() == [b"a", b"b"]


def test_an_unfinished_sample_says_none() -> None:
    call = Call("x", SamplingParams(n=2), return_finish_reason=True)
    made = arrays(call, Delta("a"), Delta("b", finish_reason=FinishReason.LENGTH), final=False)
    assert made["finish_reason"].tolist() == [b"None", b"length"]


def test_logprobs_are_null_when_the_sampler_was_not_asked() -> None:
    call = Call("x", SamplingParams(), return_logprobs=True)
    assert arrays(call, Delta("a", [1]))["logprobs"].tolist() == [b"null"]


def test_logprobs_json_puts_the_chosen_token_first_and_is_json() -> None:
    chosen = TokenLogprob(9, -3.0, 5, ((1, -0.5), (9, -3.0), (2, -math.inf)))
    [position] = json.loads(logprobs_json([chosen], lambda token_id: f"t{token_id}"))
    assert list(position) == ["9", "1", "2"]
    assert position["9"] == {"logprob": -3.0, "rank": 5, "decoded_token": "t9"}
    assert position["1"] == {"logprob": -0.5, "rank": 1, "decoded_token": "t1"}
    assert position["2"]["logprob"] == -9999.0, "minus infinity is not JSON"
    assert logprobs_json([], str) == "[]"


def test_prompt_logprobs_come_once_and_begin_with_null() -> None:
    call = Call("x", SamplingParams(prompt_logprobs=0))
    made = arrays(call, Delta("a", [1], prompt_logprobs=[None, TokenLogprob(3, -2.0, 4)]))
    assert json.loads(made["prompt_logprobs"][0]) == [None, {"3": {"logprob": -2.0, "rank": 4, "decoded_token": "<3>"}}]
    assert "prompt_logprobs" not in arrays(call, Delta("b", [2]), first=False)


def test_strings_with_nul_bytes_are_not_cut() -> None:
    assert arrays(Call("x", SamplingParams()), Delta("a\x00"))["text_output"].tolist() == [b"a\x00"]
