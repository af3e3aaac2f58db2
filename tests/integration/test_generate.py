"""The generate end points and gRPC streams: what comes back, in both shapes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from chain_model import EOS, cycle_text
from triton_fixtures import RunningServer
from triton_grpc import ask

pytestmark = pytest.mark.triton_server

MODELS = ["chain", "chain_batched"]


def body(**fields: object) -> dict[str, object]:
    return {"text_input": "x", "max_tokens": 7, "temperature": 0.0, "return_finish_reason": True, **fields}


@pytest.mark.parametrize("model", MODELS)
def test_generate_answers_once_with_the_whole_text(chain_server: RunningServer, model: str) -> None:
    answer = chain_server.client.generate(model, body(exclude_input_in_output=True, return_num_output_tokens=True))
    assert answer.status == 200
    content = answer.json()
    assert content["text_output"] == cycle_text(7)
    assert (content["finish_reason"], content["num_output_tokens"]) == ("length", 7)


@pytest.mark.parametrize("model", MODELS)
def test_generate_stream_sends_deltas_and_the_reason_last(chain_server: RunningServer, model: str) -> None:
    """Of so many tokens that they are not all made before the first is sent."""
    asked = body(max_tokens=1000, stream=True, return_num_output_tokens=True)
    events = list(chain_server.client.generate_stream(model, asked))
    assert "".join(event["text_output"] for event in events) == cycle_text(1000)
    assert sum(event["num_output_tokens"] for event in events) == 1000
    assert [event["finish_reason"] for event in events] == ["None"] * (len(events) - 1) + ["length"]
    assert len(events) > 1


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_grpc_stream_has_one_final_response(chain_server: RunningServer, model: str, stream: bool) -> None:
    inputs = {**body(max_tokens=1000), "stream": stream}
    answer = ask(
        chain_server.grpc_address, model, {**inputs, "exclude_input_in_output": True}, batched=model != "chain"
    )
    assert (answer.text, answer.num_final, answer.errors) == (cycle_text(1000), 1, [])
    assert answer.output("finish_reason")[-1] == "length"
    assert (len(answer.responses) == 1) is not stream
    rank = 1 if model == "chain" else 2
    assert all(response.as_numpy("text_output").ndim == rank for response in answer.responses)


def test_the_prompt_is_repeated_as_the_vllm_backend_does(chain_server: RunningServer) -> None:
    """Shape [1]: repeated unless excluded or streaming. Shape [1, 1]: only when asked for."""
    generate = chain_server.client.generate
    assert generate("chain", body()).json()["text_output"] == "x" + cycle_text(7)
    assert generate("chain", body(exclude_input_in_output=True)).json()["text_output"] == cycle_text(7)
    assert generate("chain_batched", body()).json()["text_output"] == cycle_text(7)
    assert generate("chain_batched", body(exclude_input_in_output=False)).json()["text_output"] == "x" + cycle_text(7)
    events = list(chain_server.client.generate_stream("chain", body(stream=True)))
    assert "".join(event["text_output"] for event in events) == cycle_text(7)
    echoed = list(chain_server.client.generate_stream("chain", body(stream=True, exclude_input_in_output=False)))
    assert "".join(event["text_output"] for event in echoed) == "x" + cycle_text(7)


def test_tensor_beats_sampling_parameters_beats_parameter(chain_server: RunningServer) -> None:
    """`top_k` has a tensor; `logprobs` has none and so arrives as a request parameter."""
    sampling = json.dumps({"max_tokens": 3, "temperature": 0.0})
    given = {"text_input": "x", "exclude_input_in_output": True, "return_num_output_tokens": True}
    generate = chain_server.client.generate
    answer = generate("chain", {**given, "sampling_parameters": sampling, "max_tokens": 5})
    assert answer.json()["num_output_tokens"] == 5
    assert generate("chain", {**given, "sampling_parameters": sampling}).json()["num_output_tokens"] == 3
    logprobs = {"return_logprobs": True, "max_tokens": 1, "temperature": 0.0}
    answer = generate("chain", {**given, **logprobs, "logprobs": 2})
    assert len(json.loads(answer.json()["logprobs"])[0]) == 2
    answer = generate("chain", {**given, **logprobs, "logprobs": 2, "sampling_parameters": '{"logprobs": 4}'})
    assert len(json.loads(answer.json()["logprobs"])[0]) == 4


def test_call_options_work_inside_sampling_parameters(chain_server: RunningServer) -> None:
    options = {"max_tokens": 2, "temperature": 0, "exclude_input_in_output": True, "return_finish_reason": True}
    answer = chain_server.client.generate("chain", {"text_input": "x", "sampling_parameters": json.dumps(options)})
    assert answer.json()["text_output"] == cycle_text(2)
    assert answer.json()["finish_reason"] == "length"


@pytest.mark.parametrize("alias", ["stream", "streaming"])
def test_stream_has_an_alias(chain_server: RunningServer, alias: str) -> None:
    """Of so many tokens that they are not all made before the first is sent."""
    assert len(list(chain_server.client.generate_stream("chain", body(max_tokens=1000, **{alias: True})))) > 1


@pytest.mark.parametrize("field", ["stop", "stop_words"])
def test_stop_words_cut_the_text(chain_server: RunningServer, field: str) -> None:
    answer = chain_server.client.generate("chain", body(**{field: ["o three", "never"]}, exclude_input_in_output=True))
    assert answer.json()["text_output"] == "one tw"
    assert answer.json()["finish_reason"] == "stop"


def test_several_samples_share_one_response(chain_server: RunningServer) -> None:
    fields = {"n": 3, "exclude_input_in_output": True, "return_num_output_tokens": True}
    answer = chain_server.client.generate("chain", body(**fields)).json()
    assert answer["text_output"] == [cycle_text(7)] * 3
    assert answer["finish_reason"] == ["length"] * 3
    assert answer["num_output_tokens"] == [7] * 3
    events = list(chain_server.client.generate_stream("chain", body(**fields, stream=True)))
    for sample in range(3):
        assert "".join(event["text_output"][sample] for event in events) == cycle_text(7)
        assert events[-1]["finish_reason"][sample] == "length"


def test_token_ids_in_give_token_ids_out(chain_server: RunningServer) -> None:
    answer = chain_server.client.generate("chain", {"input_ids": [32, 33], "max_tokens": 3, "temperature": 0.0})
    assert answer.status == 200, answer.body
    assert answer.json()["output_ids"] == [34, 35, 36]  # "C", "D", "E"
    assert answer.json()["text_output"] == "CDE"


def test_zero_tokens_of_text_is_one_empty_answer(chain_server: RunningServer) -> None:
    answer = chain_server.client.generate("chain", body(text_input="x.", exclude_input_in_output=True))
    assert (answer.status, answer.json()["text_output"], answer.json()["finish_reason"]) == (200, "", "stop")
    events = list(chain_server.client.generate_stream("chain", body(text_input="x.", stream=True)))
    assert [(event["text_output"], event["finish_reason"]) for event in events] == [("", "stop")]


def test_every_chunk_of_a_split_character_is_valid(chain_server: RunningServer) -> None:
    events = list(chain_server.client.generate_stream("chain", body(text_input="x~", stream=True)))
    assert "".join(event["text_output"] for event in events) == "🌶"
    assert all("\ufffd" not in event["text_output"] for event in events)


def test_optional_outputs(chain_server: RunningServer) -> None:
    wanted = ("logprobs", "cumulative_logprob", "num_input_tokens", "num_output_tokens", "output_ids")
    fields = {f"return_{name}": True for name in wanted}
    answer = chain_server.client.generate("chain", body(text_input="ab!", logprobs=1, **fields)).json()
    assert answer["num_input_tokens"] == 3
    assert answer["num_output_tokens"] == 6  # the letters and the end token
    assert answer["output_ids"][:5] == [32, 33, 34, 35, 36]
    logprobs = json.loads(answer["logprobs"])
    assert [next(iter(entry.values()))["decoded_token"] for entry in logprobs] == [*"ABCDE", EOS]
    assert next(iter(logprobs[0].values()))["rank"] == 1
    total = sum(next(iter(entry.values()))["logprob"] for entry in logprobs)
    assert answer["cumulative_logprob"] == pytest.approx(total, abs=1e-4)


def test_a_minimal_config_is_completed_and_said(chain_server: RunningServer, post: Callable[[str], None]) -> None:
    config = chain_server.client.call("GET", "/v2/models/chain/config").json()
    assert config["model_transaction_policy"]["decoupled"] is True
    assert {entry["name"]: entry["dims"] for entry in config["input"]}["stop_words"] == [-1]
    log = chain_server.log_path.read_text()
    assert "tensors of shape [1] (max_batch_size 0)" in log
    assert "tensors of shape [1, 1] (max_batch_size 8)" in log
    post("chain")
