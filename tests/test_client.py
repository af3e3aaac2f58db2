"""The streaming client against a gRPC server of the same protocol; tests/integration uses it against tritonserver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest
from chain_model import cycle_text
from fake_triton import FakeModel, serving
from triton_fixtures import RunningServer
from trtdecode.client import Chunk, StreamClient, StreamError, StreamStats


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def client(model: FakeModel) -> Iterator[StreamClient]:
    with serving(model) as address, StreamClient(address, "tiny") as stream_client:
        yield stream_client


def sent_tensors(model: FakeModel) -> dict[str, tuple[str, list[int], Any]]:
    """Name -> (datatype, shape, first value) of the last request."""
    field = {"BYTES": "bytes_contents", "BOOL": "bool_contents", "INT32": "int_contents", "FP32": "fp32_contents"}
    return {
        tensor.name: (tensor.datatype, list(tensor.shape), getattr(tensor.contents, field[tensor.datatype])[0])
        for tensor in model.requests[-1].inputs
    }


def test_chunks_in_order(client: StreamClient) -> None:
    chunks = list(client.stream("hi"))
    assert [(c.text, c.finish_reason, c.num_output_tokens) for c in chunks] == [("héllo ", None, 2), ("🌶", "stop", 3)]
    assert chunks[0].received_at <= chunks[1].received_at


def test_sends_the_vllm_tensors(client: StreamClient, model: FakeModel) -> None:
    list(client.stream("hi 🌶", {"max_tokens": 3, "stop": ["a"]}, stream=False, inputs={"max_tokens": 7, "top_p": 0.5}))
    tensors = sent_tensors(model)
    assert tensors["text_input"] == ("BYTES", [1], "hi 🌶".encode())
    assert tensors["stream"] == ("BOOL", [1], False)
    assert json.loads(tensors["sampling_parameters"][2]) == {"max_tokens": 3, "stop": ["a"]}
    assert tensors["exclude_input_in_output"] == ("BOOL", [1], True)
    assert tensors["max_tokens"] == ("INT32", [1], 7)
    assert tensors["top_p"] == ("FP32", [1], 0.5)


def test_shape_of_a_batching_model(client: StreamClient, model: FakeModel) -> None:
    model.max_batch_size = 8
    list(client.stream("hi"))
    assert all(shape == [1, 1] for _, shape, _ in sent_tensors(model).values())


def test_prompt_as_token_ids(client: StreamClient, model: FakeModel) -> None:
    list(client.stream([5, 6, 7]))
    (tensor,) = [tensor for tensor in model.requests[-1].inputs if tensor.name == "input_ids"]
    assert (tensor.datatype, list(tensor.shape), list(tensor.contents.int_contents)) == ("INT32", [3], [5, 6, 7])
    assert "text_input" not in sent_tensors(model)


def test_error_in_the_stream(client: StreamClient, model: FakeModel) -> None:
    model.behaviour = "error"
    with pytest.raises(StreamError, match="max_tokens: got -1; must be at least 1"):
        list(client.stream("hi"))


def test_error_status(client: StreamClient, model: FakeModel) -> None:
    model.behaviour = "abort"
    with pytest.raises(StreamError, match="NOT_FOUND: no model 'tiny'") as caught:
        list(client.stream("hi"))
    assert caught.value.code == "NOT_FOUND"


def test_closing_the_iterator_cancels(client: StreamClient, model: FakeModel) -> None:
    model.behaviour = "endless"
    stream = client.stream("hi")
    assert next(stream).text == "x"
    stream.close()
    assert model.cancelled.wait(5)


def test_deadline(client: StreamClient, model: FakeModel) -> None:
    model.behaviour = "endless"
    with pytest.raises(StreamError) as caught:
        list(client.stream("hi", timeout_s=0.3))
    assert caught.value.code == "DEADLINE_EXCEEDED"


def test_many_streams_share_a_channel(client: StreamClient) -> None:
    with futures.ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: "".join(chunk.text for chunk in client.stream("hi")), range(16)))
    assert texts == ["héllo 🌶"] * 16


def test_readiness(client: StreamClient) -> None:
    assert client.is_ready()
    assert not StreamClient(client.address, "other").is_ready()


@pytest.mark.triton_server
def test_against_tritonserver(chain_server: RunningServer) -> None:
    for model in ("chain", "chain_batched"):
        with StreamClient(chain_server.grpc_address, model) as client:
            assert client.is_ready()
            chunks = list(client.stream("x", {"max_tokens": 7, "temperature": 0}))
            assert "".join(chunk.text for chunk in chunks) == cycle_text(7)
            assert sum(chunk.num_output_tokens for chunk in chunks) == 7
            assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["length"]
            with pytest.raises(StreamError, match="max_tokens: got -1") as caught:
                list(client.stream("x", {"max_tokens": -1}))
            assert caught.value.code == "INVALID_ARGUMENT"


def test_nobody_listens() -> None:
    with StreamClient("127.0.0.1:1", "tiny") as client:
        assert not client.is_ready(timeout_s=1)
        with pytest.raises(
            StreamError, match=r"no Triton gRPC end point at 127.0.0.1:1; start one with `trtdecode serve`"
        ):
            list(client.stream("hi"))


def chunk(received_at: float, num_output_tokens: int) -> Chunk:
    return Chunk("", None, num_output_tokens, 0, received_at, {})


def test_stats() -> None:
    stats = StreamStats(started_at=10.0)
    assert (stats.ttft_ms, stats.itl_ms, stats.tokens_per_s) == (0.0, 0.0, 0.0)
    stats.add(chunk(10.25, 1))
    assert (stats.ttft_ms, stats.itl_ms, stats.tokens_per_s) == (250.0, 0.0, 4.0)
    stats.add(chunk(10.5, 2))  # two tokens in one response: coalesced
    stats.add(chunk(10.75, 2))
    stats.add(chunk(11.0, 0))  # the empty final response is no token
    assert (stats.ttft_ms, stats.itl_ms) == (250.0, 125.0)
    assert stats.tokens_per_s == 5 / 0.75
