"""Clients of Triton's vLLM backend and of Triton's OpenAI front end, with the tensors they really send.

The front end has two request formats: `--backend vllm` (shape [1], parameters in one JSON text) and its default
([1, 1], one tensor a parameter). Both read `text_output` as one string and the two counts as UINT32.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from chain_model import cycle_text
from triton_fixtures import RunningServer
from triton_grpc import Answer, ask

pytestmark = pytest.mark.triton_server


def vllm_format(stream: bool, **sampling: Any) -> dict[str, np.ndarray[Any, Any]]:
    """What the front end's `_create_vllm_generate_request` makes of a completion or chat request."""
    return {
        "text_input": np.array(["x"], object),
        "stream": np.bool_([stream]),
        "exclude_input_in_output": np.bool_([True]),
        "return_logprobs": np.bool_(["logprobs" in sampling]),
        "sampling_parameters": np.array([json.dumps(sampling)], object),
        "return_num_input_tokens": np.bool_([True]),
        "return_num_output_tokens": np.bool_([True]),
    }


def default_format(stream: bool, completion: bool) -> dict[str, np.ndarray[Any, Any]]:
    """What `_create_trtllm_generate_request` makes; only completions say whether the prompt is repeated."""
    tensors = {
        "text_input": np.array([["x"]], object),
        "stream": np.bool_([[stream]]),
        "max_tokens": np.int32([[7]]),
        "stop_words": np.array([["never", "ever"]], object),
        "top_p": np.float32([[0.9]]),
        "frequency_penalty": np.float32([[0.0]]),
        "presence_penalty": np.float32([[0.0]]),
        "seed": np.uint64([[11]]),
        "temperature": np.float32([[0.0]]),
        "return_num_input_tokens": np.bool_([[True]]),
        "return_num_output_tokens": np.bool_([[True]]),
    }
    if completion:
        tensors["exclude_input_in_output"] = np.bool_([[True]])
    return tensors


def check_answer(answer: Answer, stream: bool) -> None:
    assert answer.errors == []
    assert answer.text == cycle_text(7)
    assert answer.num_final == 1
    assert 1 <= len(answer.responses) <= (7 if stream else 1)
    for response in answer.responses:
        for name in ("text_output", "num_input_tokens", "num_output_tokens"):
            assert response.as_numpy(name).size == 1, "the front end reads exactly one element"
        assert response.as_numpy("num_input_tokens").dtype == np.uint32
        assert response.as_numpy("num_input_tokens").item() == 1
    assert sum(answer.output("num_output_tokens")) == 7, "the front end adds up the counts of all chunks"


@pytest.mark.parametrize("stream", [False, True])
def test_vllm_format(chain_server: RunningServer, stream: bool) -> None:
    sampling = {"frequency_penalty": 0.0, "n": 1, "presence_penalty": 0.0, "temperature": 0.0, "top_p": 1.0}
    tensors = vllm_format(stream, **sampling, max_tokens=7, logit_bias={"200": -1}, seed=-5, stop=["never"])
    check_answer(ask(chain_server.grpc_address, "chain", tensors), stream)


def test_vllm_format_with_logprobs(chain_server: RunningServer) -> None:
    answer = ask(chain_server.grpc_address, "chain", vllm_format(True, temperature=0.0, max_tokens=7, logprobs=2))
    check_answer(answer, True)
    positions = [entry for text in answer.output("logprobs") for entry in json.loads(text)]
    assert len(positions) == 7
    for position in positions:
        chosen = min(position.values(), key=lambda value: value["rank"])  # how the front end finds it
        assert (chosen["rank"], len(position)) == (1, 2)
    assert "".join(next(iter(position.values()))["decoded_token"] for position in positions) == cycle_text(7)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("completion", [False, True])
def test_default_format(chain_server: RunningServer, stream: bool, completion: bool) -> None:
    answer = ask(chain_server.grpc_address, "chain_batched", default_format(stream, completion))
    check_answer(answer, stream)


def test_the_format_is_found_by_the_config(chain_server: RunningServer) -> None:
    """The front end looks for the echo tensor's name among the model's inputs."""
    for model in ("chain", "chain_batched"):
        config = chain_server.client.call("GET", f"/v2/models/{model}/config").json()
        assert config["backend"] == "trtdecode"
        assert "exclude_input_in_output" in {entry["name"] for entry in config["input"]}


def test_a_vllm_backend_client_without_options(chain_server: RunningServer) -> None:
    """The vLLM backend's own sample client: prompt, stream, sampling_parameters with numbers as strings."""
    for stream in (False, True):
        tensors = {
            "text_input": np.array([b"x"], object),
            "stream": np.array([stream]),
            "sampling_parameters": np.array([b'{"temperature": "0.1", "top_p": "0.95", "max_tokens": "7"}'], object),
            "exclude_input_in_output": np.array([True]),
        }
        answer = ask(chain_server.grpc_address, "chain", tensors)
        assert (answer.text, answer.errors) == (cycle_text(7), [])
