"""CASES group C: C18 (seeds in company), C20 (penalties), C21 (prompt logprobs and the prefix cache).

C18 runs over the real server on the flat model, whose logits are all equal, so that any difference is the random
stream's. C20 and C21 run in process on a random model, whose answers need the right K/V, against transformers.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builder.tiny_models import model_greedy, model_logits, random_prompt
from random_model import SIZES, write_random_version
from triton_fixtures import wait_for
from triton_grpc import GrpcStream, ask
from trtdecode.config import ServingConfig
from trtdecode.replica import Replica
from trtdecode.request import TokenLogprob
from trtdecode.sampling.params import SamplingParams

from .conftest import ScriptServer

BLOCK = 16  # the torch executor's

# C18 ---------------------------------------------------------------------------------------------------------------


def seeded(seed: int | None, **fields: Any) -> dict[str, Any]:
    sampling = {"temperature": 0.8, "max_tokens": 16, "ignore_eos": True, **fields}
    if seed is not None:
        sampling["seed"] = seed
    return {"text_input": "A", "return_output_ids": True, "sampling_parameters": json.dumps(sampling)}


def ids_in_company(scripts: ScriptServer, company: list[dict[str, Any]], *, first: bool) -> list[int]:
    """A's ids when these requests are sent before or after it, each on a stream of its own."""
    address = scripts.server.grpc_address
    streams = [GrpcStream(address).__enter__() for _ in company]
    try:
        with GrpcStream(address) as own:
            a = own.send("flat", seeded(42)) if first else None
            for stream, fields in zip(streams, company, strict=True):
                stream.send("flat", fields)
            return (a or own.send("flat", seeded(42))).wait().output("output_ids")
    finally:
        for stream in streams:
            stream.close()


@pytest.mark.triton_server
def test_c18_a_seed_gives_the_same_ids_in_any_company(scripts: ScriptServer, settled: None) -> None:
    address = scripts.server.grpc_address
    alone = ask(address, "flat", seeded(42)).output("output_ids")
    assert len(alone) == 16 and len(set(alone)) > 8
    rng = random.Random(0)
    for _ in range(4):
        for company in ([seeded(None)], [seeded(7)], [seeded(42, temperature=1.5)]):
            for first in (True, False):
                assert ids_in_company(scripts, company, first=first) == alone
        joining = [
            seeded(rng.choice([None, 3]), max_tokens=rng.randint(1, 200), top_k=rng.choice([0, 5])) for _ in range(7)
        ]
        assert ids_in_company(scripts, joining, first=False) == alone


@pytest.mark.triton_server
def test_c18_an_unseeded_request_is_not_repeated(scripts: ScriptServer) -> None:
    runs = {tuple(ask(scripts.server.grpc_address, "flat", seeded(None)).output("output_ids")) for _ in range(3)}
    assert len(runs) == 3, "16 draws of some 288 tokens"


@pytest.mark.triton_server
def test_c18_a_seed_survives_a_restart(scripts: ScriptServer) -> None:
    """The model is loaded again: another process, another secret of the prefix cache, the same ids."""
    address, client = scripts.server.grpc_address, scripts.server.client
    before, stub = ask(address, "flat", seeded(42)).output("output_ids"), scripts.server.stub_pid("flat")
    client.unload("flat")
    wait_for(
        lambda: {entry["name"]: entry.get("state") for entry in client.index()}["flat"] != "READY", what="unloaded"
    )
    client.load("flat")
    assert scripts.server.stub_pid("flat") != stub
    assert ask(address, "flat", seeded(42)).output("output_ids") == before


@pytest.mark.triton_server
def test_c18_neighbour_samples_have_streams_of_their_own(scripts: ScriptServer) -> None:
    """Sample 0 of n is the lone request; the others differ from it and come back with the seed."""
    fields = {**seeded(42), "return_output_ids": False, "exclude_input_in_output": True}
    lone = scripts.server.client.generate("flat", fields).json()["text_output"]
    runs = [scripts.server.client.generate("flat", {**fields, "n": 3}).json() for _ in range(2)]
    assert runs[0]["text_output"] == runs[1]["text_output"]
    assert runs[0]["text_output"][0] == lone and len(set(runs[0]["text_output"])) == 3


# C20 ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    return write_random_version(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def replica(random_model: tuple[Any, Path]) -> Iterator[Replica]:
    config = ServingConfig(executor="torch", kv_cache_bytes=1 << 20, max_num_seqs=4, max_num_batched_tokens=64)
    with Replica.load(random_model[1], config) as made:
        assert made.executor.block_size == BLOCK
        yield made


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, **fields})


def penalised(model: Any, prompt: list[int], num_tokens: int, **penalties: float) -> list[int]:
    """Greedy decoding by whole forward passes, with the penalties as their definition says."""
    output: list[int] = []
    for _ in range(num_tokens):
        logits = model_logits(model, prompt + output)[-1].astype(np.float64)
        seen = sorted({*prompt, *output})
        factor = penalties.get("repetition_penalty", 1.0)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
        for token, count in Counter(output).items():
            logits[token] -= count * penalties.get("frequency_penalty", 0.0) + penalties.get("presence_penalty", 0.0)
        output.append(int(logits.argmax()))
    return output


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 2.0},
        {"frequency_penalty": 0.5, "presence_penalty": 0.25},
        {"repetition_penalty": 1.2},
        {"frequency_penalty": -2.0},
        {"repetition_penalty": 0.7, "frequency_penalty": 1.05},
    ],
    ids=str,
)
def test_c20_penalties_count_what_their_definition_says(
    replica: Replica, random_model: tuple[Any, Path], penalties: dict[str, float]
) -> None:
    prompt = [65] * 20  # one repeated word
    expected = penalised(random_model[0], prompt, 12, **penalties)
    (answer,) = replica.generate(prompt, params(**penalties))
    assert answer.token_ids == expected
    if "repetition_penalty" not in penalties:
        assert answer.token_ids[0] == model_greedy(random_model[0], prompt, 1)[0], "nothing is generated yet"


def test_c20_a_neighbour_does_not_notice(replica: Replica, random_model: tuple[Any, Path]) -> None:
    short, long = random_prompt(5, 256), random_prompt(70, 256)
    a = replica.stream(short, params())
    b = replica.stream(long, params(frequency_penalty=1.05))
    ids: tuple[list[int], list[int]] = ([], [])
    for stream, into in ((b, ids[1]), (a, ids[0])):
        for event in stream:
            into.extend(event.token_ids)
    assert ids[0] == model_greedy(random_model[0], short, 12)
    assert ids[1] == penalised(random_model[0], long, 12, frequency_penalty=1.05)


def test_c20_a_cached_prefix_is_penalised_too(replica: Replica, random_model: tuple[Any, Path]) -> None:
    prompt = random_prompt(40, 256, seed=20)
    expected = penalised(random_model[0], prompt, 12, repetition_penalty=1.3)
    for num_cached in (0, 2 * BLOCK, 2 * BLOCK):
        events = list(replica.stream(prompt, params(repetition_penalty=1.3)))
        assert [token for event in events for token in event.token_ids] == expected
        assert events[0].request.num_cached_tokens == num_cached


def test_c20_a_negative_frequency_raises_repeats(replica: Replica) -> None:
    prompt = random_prompt(9, 256, seed=3)
    counts = [
        max(Counter(replica.generate(prompt, params(max_tokens=40, frequency_penalty=value))[0].token_ids).values())
        for value in (2.0, -2.0)
    ]
    assert counts[0] < counts[1]


@pytest.mark.triton_server
@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("frequency_penalty", -2.0, 200),
        ("frequency_penalty", 2.0, 200),
        ("frequency_penalty", -2.1, 400),
        ("presence_penalty", 2.1, 400),
        ("repetition_penalty", 0.0, 400),
        ("repetition_penalty", -1.0, 400),
        ("repetition_penalty", 0.01, 200),
        ("repetition_penalty", 1e-3, 400),
    ],
)
def test_c20_limits(scripts: ScriptServer, field: str, value: float, status: int) -> None:
    answer = scripts.server.client.generate("script", scripts.fields("script", "words", **{field: value}))
    assert answer.status == status
    assert status == 200 or f"{field}: got {value:g}" in answer.json()["error"]


# C21 ---------------------------------------------------------------------------------------------------------------


def prompt_logprobs(replica: Replica, prompt: list[int], **fields: Any) -> list[TokenLogprob | None]:
    answer = replica.generate(prompt, params(max_tokens=1, prompt_logprobs=1, logprobs=1, **fields))[0]
    assert answer.prompt_logprobs is not None
    return answer.prompt_logprobs


def assert_right(entries: list[TokenLogprob | None], model: Any, prompt: list[int]) -> None:
    log_softmax = torch.log_softmax(torch.from_numpy(model_logits(model, prompt)), dim=-1).numpy()
    assert len(entries) == len(prompt) and entries[0] is None
    for position, entry in enumerate(entries[1:], 1):
        assert entry is not None and entry.token_id == prompt[position]
        assert entry.logprob == pytest.approx(log_softmax[position - 1, prompt[position]], abs=1e-4)
        assert entry.top[0][0] == int(log_softmax[position - 1].argmax())


@pytest.mark.parametrize("order", ["PPQP", "QPQ"])
@pytest.mark.parametrize("length", [33, 17, 16, 15, 1, 2])
def test_c21_prompt_logprobs_do_not_depend_on_the_cache(
    replica: Replica, random_model: tuple[Any, Path], order: str, length: int
) -> None:
    p = random_prompt(length, SIZES["vocab_size"], seed=len(order))
    q = p[:BLOCK] + random_prompt(9, SIZES["vocab_size"], seed=8)
    for name in order:
        prompt = p if name == "P" else q
        assert_right(prompt_logprobs(replica, prompt), random_model[0], prompt)
        replica.generate(prompt, params(max_tokens=1))  # leaves its blocks in the cache, and takes them


def test_c21_neighbour_prompts_in_chunks_and_in_company(replica: Replica, random_model: tuple[Any, Path]) -> None:
    """150 tokens in steps of at most 64, beside another stream; with two samples, of which the first has them."""
    prompt = random_prompt(150, SIZES["vocab_size"], seed=1)
    company = replica.stream(random_prompt(5, 256), params(max_tokens=60))
    next(company)
    assert_right(prompt_logprobs(replica, prompt), random_model[0], prompt)
    assert_right(prompt_logprobs(replica, prompt, n=2), random_model[0], prompt)
    company.close()


@pytest.mark.triton_server
def test_c21_neighbour_over_the_gateway_with_echo(scripts: ScriptServer) -> None:
    for _ in range(2):
        body = scripts.completion("words", echo=True, logprobs=1, max_tokens=1).json()
        logprobs = body["choices"][0]["logprobs"]
        assert body["choices"][0]["text"] == scripts.prompt("words") + "one"
        assert len(logprobs["token_logprobs"]) == len(scripts.prompt("words")) + 1
        assert logprobs["token_logprobs"][0] is None and None not in logprobs["token_logprobs"][1:]
        assert "".join(logprobs["tokens"]) == body["choices"][0]["text"]
        assert logprobs["text_offset"] == list(range(len(logprobs["tokens"])))
        assert [len(logprobs[name]) for name in ("top_logprobs", "tokens")] == [len(scripts.prompt("words")) + 1] * 2
    chunks = scripts.completion("words", echo=True, logprobs=1, max_tokens=3, stream=True).text.splitlines()
    found = [json.loads(line[6:])["choices"][0]["logprobs"] for line in chunks if line.startswith("data: {")]
    tokens = [token for entry in found for token in entry["tokens"]]
    assert tokens == ["x"] * len(scripts.prompt("words")) + ["one", " two", " three"]
    offsets = [offset for entry in found for offset in entry["text_offset"]]
    assert offsets[-3:] == [46, 49, 53] and offsets == sorted(offsets)
