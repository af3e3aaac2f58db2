"""CASES group D: C27 (preemption) on real executors and a random model, stepped by hand so that it always happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builder.tiny_models import random_prompt
from random_model import write_random_version
from simulation.builders import Events, collect, make_loop, make_request
from trtdecode.executor.base import Executor
from trtdecode.executor.openvino_executor import OpenVinoExecutor
from trtdecode.executor.torch_executor import TorchExecutor
from trtdecode.loop import Loop
from trtdecode.manifest import read_manifest
from trtdecode.overlap import OverlappedLoop
from trtdecode.request import FinishReason, Request
from trtdecode.sampling.sampler import Sampler
from trtdecode.text.tokenizer import Tokenizer

ROOMY = 1024
#: Tokens of the pool in which two prompts of 40 start and cannot both end: C27's 128, and more with blocks of 32.
TIGHT = {"torch": 128, "openvino": 160}
NUM_TOKENS = 60
GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "seeded": {"temperature": 0.9},
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.3},
    "logprobs": {"temperature": 0.0, "logprobs": 1},
    "seeded-penalties": {"temperature": 0.9, "presence_penalty": 0.7, "frequency_penalty": -0.3, "logprobs": 2},
}


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_version(tmp_path_factory.mktemp("random"))[1]


@dataclass(frozen=True)
class Executors:
    """The same executor with a large pool and with a small one (block 0 is nobody's), which may have a host pool."""

    roomy: Executor
    tight: Executor


@pytest.fixture(scope="module", params=["torch", "torch-swap", "openvino", "openvino-swap", "openvino-swap-little"])
def executors(request: pytest.FixtureRequest, version: Path) -> Iterator[Executors]:
    name, _, swap = request.param.partition("-")
    kind: Any = {"torch": TorchExecutor, "openvino": partial(OpenVinoExecutor, num_threads=1)}[name]
    size = {"torch": 16, "openvino": 32}[name]
    layers, kv_heads, head_dim = 2, 2, 16
    block_bytes = layers * 2 * kv_heads * head_dim * size * 4
    num_host_blocks = {"": 0, "swap": 100, "swap-little": 3}[swap]
    made = [
        kind(
            version / "decoder.onnx",
            kv_cache_bytes=(num_tokens // size + 1) * block_bytes,
            swap_space_bytes=num_host_blocks * block_bytes,
        )
        for num_tokens in (ROOMY, TIGHT[name])
    ]
    assert [executor.num_blocks for executor in made] == [ROOMY // size + 1, TIGHT[name] // size + 1]
    assert made[1].num_host_blocks == num_host_blocks
    yield Executors(*made)
    for executor in made:
        executor.close()


def loop_of(version: Path, executor: Executor, loop_class: Callable[..., Loop], **config: Any) -> Loop:
    spec = read_manifest(version).spec
    return make_loop(executor=executor, sampler=Sampler(()), spec=spec, loop_class=loop_class, **config)


def request_of(version: Path, index: int, events: Events, sampling: dict[str, Any], **fields: Any) -> Request:
    tokenizer = Tokenizer.from_dir(version)
    fields = {"num_prompt": 40, "num_tokens": NUM_TOKENS, **fields}
    prompt = random_prompt(fields.pop("num_prompt"), 256, seed=index)
    num_tokens = fields.pop("num_tokens")
    priority = fields.pop("priority", 0)
    request = make_request(
        prompt, num_tokens, on_event=events.append, seed=5, params={**sampling, "priority": priority}, **fields
    )
    request.output = tokenizer.output(request.params, prompt, (), None)
    return request


def run(loop: Loop, *requests: Request, until: Callable[[], bool] = bool) -> None:
    """Submits, and steps until all is done (or `until`)."""
    if requests:
        loop.submit(*requests)
    for _ in range(2000):
        if until() or (not loop.step() and not loop.admission.num_inside):
            return
        loop.check_integrity()
    raise AssertionError("the loop did not come to an end")


def answer(events: Events) -> dict[str, Any]:
    """Everything that a client gets of one request."""
    token_ids, final = collect(events)
    logprobs = [entry for event in events for entry in event.logprobs or ()]
    return {
        "token_ids": token_ids,
        "text": "".join(event.text for event in events),
        "logprob_ids": [entry.token_id for entry in logprobs],
        "logprobs": [entry.logprob for entry in logprobs],
        "reason": final.finish_reason,
    }


def assert_same(got: dict[str, Any], expected: dict[str, Any]) -> None:
    """Equal, but for the last bits of log-probabilities: a batch's other rows change the order of float sums."""
    assert got.pop("logprobs") == pytest.approx(expected["logprobs"], abs=1e-4)
    assert got == {name: value for name, value in expected.items() if name != "logprobs"}


def assert_nothing_left(loop: Loop) -> None:
    loop.check_integrity()
    assert loop.admission.num_inside == 0
    assert loop.kv.pool.num_available == loop.kv.pool.num_usable
    assert loop.kv.host.num_used == 0


@pytest.mark.parametrize(
    ("sampling", "loop_class"), [*((name, Loop) for name in SAMPLINGS), ("seeded-penalties", OverlappedLoop)]
)
def test_c27_preempted_requests_get_what_they_get_alone(
    version: Path, executors: Executors, loop_class: Callable[..., Loop], sampling: str
) -> None:
    alone = []
    roomy = loop_of(version, executors.roomy, loop_class)
    for index in range(3):
        events: Events = []
        run(roomy, request_of(version, index, events, SAMPLINGS[sampling]))
        alone.append(answer(events))
    roomy.stop()
    loop = loop_of(version, executors.tight, loop_class)
    together: list[Events] = [[] for _ in range(3)]
    requests = [request_of(version, index, together[index], SAMPLINGS[sampling]) for index in range(3)]
    for request in requests:
        loop.submit(request)
    run(loop)
    for events, expected in zip(together, alone, strict=True):
        assert_same(answer(events), expected)
    assert all(len(got["token_ids"]) == NUM_TOKENS and got["reason"] is FinishReason.LENGTH for got in alone)
    assert max(request.num_preemptions for request in requests) >= 1
    counters = loop.metrics.counters
    assert counters["trtdecode_preemptions_total"] >= 1
    assert (counters["trtdecode_swapped_out_blocks_total"] > 0) == (executors.tight.num_host_blocks > 0)
    assert (counters["trtdecode_swapped_in_blocks_total"] > 0) == (executors.tight.num_host_blocks > 0)
    assert_nothing_left(loop)
    loop.stop()


def test_c27_one_request_preempted_twice(version: Path, executors: Executors) -> None:
    """B gives way to A, starts again, and gives way to C."""
    sampling = SAMPLINGS["seeded-penalties"]
    alone: Events = []
    run(loop_of(version, executors.roomy, Loop), request_of(version, 1, alone, sampling))
    loop = loop_of(version, executors.tight, Loop)
    events: Events = []
    b = request_of(version, 1, events, sampling, priority=5)
    loop.submit(request_of(version, 0, [], GREEDY), b)
    run(loop, until=lambda: b.num_preemptions == 1)
    run(loop, until=lambda: b.blocks is not None)
    c_events: Events = []
    c = request_of(version, 2, c_events, GREEDY, num_prompt=5, num_tokens=100)
    run(loop, c)
    assert b.num_preemptions >= 2
    assert_same(answer(events), answer(alone))
    assert answer(c_events)["reason"] is FinishReason.LENGTH
    assert_nothing_left(loop)


def test_c27_neighbour_samples_of_one_prompt_are_preempted_apart(version: Path, executors: Executors) -> None:
    """Three samples share a prompt's blocks; each goes on with its own stream after its preemption."""
    runs = []
    for executor in (executors.roomy, executors.tight):
        loop = loop_of(version, executor, Loop)
        events: list[Events] = [[] for _ in range(3)]
        first = request_of(version, 0, events[0], {"temperature": 0.9}, sample_index=0)
        others = [
            request_of(version, 0, events[index], {"temperature": 0.9}, sample_index=index, parent=first)
            for index in (1, 2)
        ]
        run(loop, first, *others)
        runs.append([answer(got)["token_ids"] for got in events])
        assert (loop.metrics.counters["trtdecode_preemptions_total"] > 0) == (executor is executors.tight)
        assert_nothing_left(loop)
    assert runs[0] == runs[1]
    assert len({tuple(tokens) for tokens in runs[0]}) == 3


def test_c27_neighbour_a_request_cancelled_while_preempted(version: Path, executors: Executors) -> None:
    """It ends as cancelled, its neighbour as if alone, and all blocks are back."""
    loop = loop_of(version, executors.tight, Loop)
    events: list[Events] = [[], []]
    gone: list[bool] = []
    a = request_of(version, 0, events[0], GREEDY)
    b = request_of(version, 1, events[1], GREEDY, priority=5, is_cancelled=lambda: bool(gone))
    loop.submit(a, b)
    run(loop, until=lambda: b.num_preemptions == 1)
    gone.append(True)
    run(loop)
    assert collect(events[1])[1].finish_reason is FinishReason.CANCELLED
    assert answer(events[0])["reason"] is FinishReason.LENGTH
    assert_nothing_left(loop)
