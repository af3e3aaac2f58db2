"""Tokens chosen in torch against the numpy reference, on the rows that the native sampler is held to."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance.driver import Driver
from executor.recording_device import RecordingDevice
from executor.test_cuda_graphs import make_executor
from sampling.conftest import new_request
from sampling.test_native_equals_numpy import SHAPES, random_fields
from simulation.builders import collect, make_request
from trtdecode.config import ServingConfig
from trtdecode.errors import ExecutorFailed
from trtdecode.executor.base import SAMPLING_ROW, BatchResult
from trtdecode.executor.torch_cuda_executor import TorchCudaExecutor
from trtdecode.executor.torch_sampling import choose, fields_of, softmax_weights, uniform
from trtdecode.manifest import ModelSpec
from trtdecode.overlap import make_loop
from trtdecode.request import Request
from trtdecode.sampling import philox, weights
from trtdecode.sampling.rows import NumpyRows
from trtdecode.sampling.sampler import Sampler

#: What changes logits, and is therefore the host's.
EDITS = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "bad_word_ids": (),
    "min_tokens": 0,
    "logit_bias": (),
}


def rows_for(requests: list[Request], sampler: Sampler) -> np.ndarray:
    rows = np.array([sampler.sampling_row(request) for request in requests], SAMPLING_ROW)
    rows["position"] = [request.num_tokens for request in requests]
    return rows


def fields_for(rows: np.ndarray) -> dict[str, torch.Tensor]:
    return fields_of(torch.from_numpy(rows.view(np.uint8).reshape(len(rows), -1).copy()))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("size", [2, 97, 4000])
def test_the_same_tokens_as_the_reference(shape: Any, size: int) -> None:
    rng, choices = np.random.default_rng(size), random.Random(f"{shape.__name__} {size}")
    requests = [new_request(**{**random_fields(choices, size), **EDITS}) for _ in range(40)]
    logits = np.stack([shape(rng, size) for _ in requests])
    sampler = Sampler((), rows=NumpyRows())
    wanted = sampler.sample(BatchResult(logits), requests).token_ids
    on_device = torch.from_numpy(logits)
    best = on_device.amax(1, keepdim=True)
    argmax = (on_device == best).int().argmax(1)
    got = choose(on_device, argmax, fields_for(rows_for(requests, sampler)))
    assert got.tolist() == wanted
    assert len(set(wanted)) > 1


def test_rows_that_are_not_finite_end_their_requests_only() -> None:
    logits = np.zeros((4, 9), np.float32)
    logits[0, 3], logits[1], logits[2, 8] = np.nan, -np.inf, np.inf
    requests = [new_request(temperature=0.7, seed=1) for _ in range(4)]
    sampler = Sampler(())
    rows = fields_for(rows_for(requests, sampler))
    chosen = choose(torch.from_numpy(logits), torch.zeros(4, dtype=torch.int64), rows).numpy()
    result = sampler.sample(BatchResult(None, token_ids=chosen), requests)
    assert sorted(result.errors) == [0, 1, 2]
    assert all(isinstance(error, ExecutorFailed) for error in result.errors.values())
    assert result.token_ids[3] >= 0


def test_random_numbers_are_philoxs() -> None:
    keys = [(0, 0, 0), (2**64 - 1, 2**32 - 1, 2**32 - 1), (0x0123456789ABCDEF, 3, 77), (1 << 63, 0, 1)]
    rows = np.zeros(len(keys), SAMPLING_ROW)
    for row, key in zip(rows, keys, strict=True):
        row["seed"], row["sample_index"], row["position"] = key
    assert uniform(fields_for(rows))[:, 0].tolist() == [philox.uniform(*key) for key in keys]


def test_weights_are_the_references_bits() -> None:
    x = -np.random.default_rng(0).exponential(6, 100_000).astype(np.float32)
    x[:3] = 0, -np.inf, -23
    np.testing.assert_array_equal(softmax_weights(torch.from_numpy(x)).numpy(), weights.softmax_weights(x))


@pytest.mark.parametrize(
    ("fields", "on_device"),
    [
        ({"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1}, True),
        ({"temperature": 0.0}, True),
        ({"logprobs": 0}, False),
        ({"frequency_penalty": 0.5}, False),
        ({"min_tokens": 3}, False),
        ({"logit_bias": ((1, 2.0),)}, False),
    ],
)
def test_what_needs_its_logits_on_the_host(fields: dict[str, Any], on_device: bool) -> None:
    assert (Sampler(()).sampling_row(new_request(**fields)) is not None) == on_device


# -- behind the executor ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_sequences", [1, 3], ids=["padded-to-2", "padded-to-4"])
def test_captured_and_eager_steps_choose_what_the_host_would(tmp_path: Path, num_sequences: int) -> None:
    device = RecordingDevice()
    executor = make_executor(tmp_path, device)
    assert executor.chooses_tokens
    driver = Driver(executor)
    sequences = [driver.sequence([5 + number, 9, 2], room=4) for number in range(num_sequences)]
    sampler = Sampler(())
    for count in (3, 1, 1):  # a prompt, eagerly; then replays, each with other parameters
        requests = [
            new_request(temperature=0.5 + 0.5 * number, top_k=9 * (number % 2), seed=count + number, prompt=[1] * count)
            for number in range(num_sequences)
        ]
        batch = driver.batch(*((sequence, count) for sequence in sequences))
        wanted = sampler.sample(BatchResult(executor.execute(batch).logits), requests).token_ids
        device.calls.clear()
        result = executor.execute(dataclasses.replace(batch, sampling=rows_for(requests, sampler)))
        assert result.logits is None and result.token_ids is not None
        assert sampler.sample(result, requests).token_ids == wanted
        calls = [call for call in device.calls if not call.startswith(("kv_", "attend"))]
        if count == 1:  # step and rows go in, ids come out
            assert calls == ["copy", "replay", "copy", "replay", "copy", "synchronize"]
        for sequence, token_id in zip(sequences, wanted, strict=True):
            sequence.num_computed += count
            sequence.tokens.append(token_id)


def answers(executor: TorchCudaExecutor, with_logprobs: bool) -> list[list[int]]:
    """What four requests get, greedy and sampled together, one of them perhaps with log-probabilities."""
    spec = ModelSpec("tiny", 2, 64, 4, 2, 16, 37, 64, (0, 0))
    config = ServingConfig(max_num_seqs=4, max_num_batched_tokens=32, recorder_steps=1)
    loop = make_loop(executor, Sampler(()), config, spec)
    events: list[list[Any]] = [[] for _ in range(4)]
    asked: list[tuple[int, dict[str, Any]]] = [
        (7, {"temperature": 0.0}),
        (6, {"temperature": 0.9, "top_p": 0.8}),
        (7, {"temperature": 1.3, "top_k": 6}),
        (3, {"temperature": 0.8, "min_p": 0.05, "logprobs": 0 if with_logprobs else None}),
    ]
    for number, (max_tokens, fields) in enumerate(asked):
        loop.submit(
            make_request([3 + number, 8], max_tokens, params=fields, seed=number, on_event=events[number].append)
        )
    while loop.step() or loop.admission.num_inside:
        pass
    loop.stop()
    return [collect(got)[0] for got in events]


@pytest.mark.parametrize("with_logprobs", [False, True], ids=["all-on-device", "one-wants-logprobs"])
def test_the_loop_gets_the_same_streams_from_device_and_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_logprobs: bool
) -> None:
    executor = make_executor(tmp_path, RecordingDevice())
    chosen: list[bool] = []
    execute = executor.execute

    def watch(batch: Any) -> BatchResult:
        result = execute(batch)
        chosen.append(result.token_ids is not None)
        return result

    monkeypatch.setattr(executor, "execute", watch)
    got = answers(executor, with_logprobs)
    # With log-probabilities wanted, the steps of that request come to the host; those after its end do not.
    assert any(chosen) and all(chosen) != with_logprobs
    monkeypatch.setattr(executor, "chooses_tokens", False, raising=False)
    assert answers(executor, with_logprobs) == got
    assert [len(tokens) for tokens in got] == [7, 6, 7, 3]
