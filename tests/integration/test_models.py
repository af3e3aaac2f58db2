"""Real weights, warm-up, several instances and versions: what config.pbtxt can ask for, over the real server."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chain_model import cycle_text
from triton_fixtures import RunningServer, metric, wait_for
from triton_grpc import ask
from trtdecode.config import ServingConfig
from trtdecode.replica import Replica
from trtdecode.sampling.params import SamplingParams

pytestmark = pytest.mark.triton_server

MakeServer = Callable[..., RunningServer]
MakeRepository = Callable[..., Path]
PROMPTS = ["The capital of France is", "1, 2, 3,", "Once upon a time", "def add(a, b):", "Water boils at"]
SMOLLM2_POOL = 'parameters { key: "kv_cache_bytes" value { string_value: "512MiB" } }'


@pytest.fixture(scope="module")
def smollm2_server(
    make_server: MakeServer, make_repository: MakeRepository, smollm2_version: Path
) -> Iterator[RunningServer]:
    repository = make_repository({"smollm2": SMOLLM2_POOL}, smollm2_version)
    with make_server(repository) as server:
        yield server


def test_smollm2_streams_what_the_replica_gives_in_process(
    smollm2_server: RunningServer, smollm2_version: Path
) -> None:
    served = {}

    def run(prompt: str) -> None:
        inputs = {"text_input": prompt, "max_tokens": 16, "temperature": 0.0, "stream": True}
        served[prompt] = ask(smollm2_server.grpc_address, "smollm2", inputs).wait(120).text

    threads = [threading.Thread(target=run, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert " Paris" in served[PROMPTS[0]]
    with Replica.load(smollm2_version, ServingConfig(kv_cache_bytes=1 << 27)) as replica:
        params = SamplingParams(max_tokens=16, temperature=0.0)
        assert served == {prompt: replica.generate(prompt, params)[0].text for prompt in PROMPTS}


def test_smollm2_seed_gives_the_same_text_alone_and_in_company(smollm2_server: RunningServer) -> None:
    fields = {"max_tokens": 12, "temperature": 0.9, "seed": 42, "ignore_eos": True, "exclude_input_in_output": True}
    body = {"text_input": PROMPTS[2], **fields}
    alone = smollm2_server.client.generate("smollm2", body).json()["text_output"]
    texts: list[str] = []

    def run(seed: int) -> None:
        answer = smollm2_server.client.generate("smollm2", {**body, "seed": seed}, 120)
        if seed == 42:
            texts.append(answer.json()["text_output"])

    threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 42, 2, 42, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert texts == [alone, alone]


WARM_UP = (
    'model_warmup [ { name: "text" batch_size: 1 '
    'inputs { key: "text_input" value { data_type: TYPE_STRING dims: [ 1 ] zero_data: true } } '
    'inputs { key: "max_tokens" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } } ]'
)


def test_model_warmup_with_zero_data_does_not_fail_the_load(
    make_server: MakeServer, make_repository: MakeRepository
) -> None:
    with make_server(make_repository({"chain": WARM_UP})) as server:
        assert server.greedy("chain") == cycle_text(10)


def test_two_instances_share_the_work(make_server: MakeServer, make_repository: MakeRepository) -> None:
    group = "instance_group [ { kind: KIND_CPU count: 2 } ]"
    with make_server(make_repository({"chain": group})) as server:
        assert len(server.stubs()) == 2
        texts: list[str] = []
        threads = [threading.Thread(target=lambda: texts.append(server.greedy("chain", "x", 200))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert texts == [cycle_text(200)] * 8
        wait_for(lambda: metric(server, "trtdecode_requests_total", "chain") == 8, what="8 counted")
        by_instance = [
            metric(server, "trtdecode_requests_total", "chain", instance=f"chain_0_{index}") for index in (0, 1)
        ]
        assert all(by_instance), "each instance has its own replica and both were used"


def test_a_newer_version_takes_over_when_it_is_loaded(make_server: MakeServer, make_repository: MakeRepository) -> None:
    """Requests without a version go to the highest loaded one: loading it is the cut-over."""
    repository = make_repository({"chain": "version_policy { latest { num_versions: 2 } }"})
    with make_server(repository) as server:
        body = {"text_input": "x", "max_tokens": 2}
        assert server.client.generate("chain", body).json()["model_version"] == "1"
        shutil.copytree(repository / "chain" / "1", repository / "chain" / "2")
        server.client.load("chain")
        assert server.client.generate("chain", body).json()["model_version"] == "2"
        old = server.client.call("POST", "/v2/models/chain/versions/1/generate", body)
        assert old.json()["model_version"] == "1", "the old version still answers by its number"


def test_warnings_and_load_errors_of_the_config(make_server: MakeServer, make_repository: MakeRepository) -> None:
    configs = {
        "policy": "dynamic_batching { priority_levels: 2 default_priority_level: 1 }",
        "ordered": "max_batch_size: 2 dynamic_batching { preserve_ordering: true }",
        "fine": "dynamic_batching { }",
    }
    server = make_server(make_repository(configs), load=())
    with server:
        server.client.load("policy")
        server.client.load("fine")
        with pytest.raises(Exception, match=r"preserve_ordering: got true; must be false"):
            server.client.load("ordered")
        assert server.greedy("policy", "x", 2) == cycle_text(2)
    log = server.log_path.read_text()
    warnings = [line for line in log.splitlines() if line.startswith("W") and "dynamic_batching" in line]
    assert len(warnings) == 1 and "policy: dynamic_batching.priority_levels" in warnings[0]
