"""The bench's client against a gRPC server of Triton's protocol; test_smoke uses it against tritonserver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fake_triton import FakeModel, serving
from trtdecode.client import StreamClient, StreamError

if TYPE_CHECKING:
    from many_streams import ManyStreams

LONG = 200_000  # tokens of a prompt whose message is longer than a frame and than a window


@pytest.fixture(autouse=True)
def _benchlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "scripts" / "benchlib"))


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def clients(model: FakeModel) -> Iterator[tuple[ManyStreams, StreamClient]]:
    from many_streams import ManyStreams

    with (
        serving(model) as address,
        StreamClient(address, "tiny") as maker,
        contextlib.closing(ManyStreams(address)) as streams,
    ):
        yield streams, maker


def token_ids(model: FakeModel) -> list[list[int]]:
    """Of every prompt that the model was sent."""
    inputs = [tensor for request in model.requests for tensor in request.inputs]
    return [list(tensor.contents.int_contents) for tensor in inputs if tensor.name == "input_ids"]


def test_counts_every_token_of_every_stream(clients: tuple[ManyStreams, StreamClient], model: FakeModel) -> None:
    streams, maker = clients
    prompts = [[number, number + 1] for number in range(20)]
    assert streams.count_tokens([maker.request(prompt) for prompt in prompts]) == 20 * 5
    assert streams.count_tokens([maker.request([7])]) == 5  # the connection serves again
    assert sorted(token_ids(model)) == sorted([*prompts, [7]])


def test_a_message_of_many_frames(clients: tuple[ManyStreams, StreamClient], model: FakeModel) -> None:
    streams, maker = clients
    assert streams.count_tokens([maker.request([49_000] * LONG)]) == 5
    assert list(map(len, token_ids(model))) == [LONG]


def test_more_answers_than_one_window(clients: tuple[ManyStreams, StreamClient], model: FakeModel) -> None:
    streams, maker = clients
    model.num_chunks = 2_000  # of 10 kB each
    assert streams.count_tokens([maker.request("hi")]) == 2_000


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [("error", "max_tokens: got -1; must be at least 1"), ("abort", "gRPC status 5: no model 'tiny'")],
)
def test_refusals(clients: tuple[ManyStreams, StreamClient], model: FakeModel, behaviour: str, message: str) -> None:
    streams, maker = clients
    model.behaviour = behaviour
    with pytest.raises(StreamError, match=message):
        streams.count_tokens([maker.request("hi")])
