"""A model over two processes behind the serving loop: the same tokens as one process has, and what follows a kill."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import transformers
from builder.engine.byte_tokenizer import byte_tokenizer
from builder.tiny_models import LLAMA_SIZES, random_prompt, save_model
from trtbuild.pipeline import import_checkpoint
from trtdecode.config import ServingConfig
from trtdecode.errors import ConfigError, ExecutorFailed, ManifestError
from trtdecode.executor.choice import choose_executor
from trtdecode.executor.devices import Devices
from trtdecode.executor.gpu_factory import GpuOptions
from trtdecode.executor.ranks.factory import rank_starter, rank_tasks
from trtdecode.executor.ranks.parallel_executor import ParallelExecutor
from trtdecode.executor.ranks.task import EngineTask
from trtdecode.manifest import RankLayout, rank_dir, read_manifest
from trtdecode.replica import Replica
from trtdecode.sampling.params import SamplingParams

PROMPTS = [random_prompt(length, 256) for length in (5, 33, 12)]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=12, temperature=0.9, top_k=40, seed=7, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=900, temperature=0.0, ignore_eos=True)


def config(**values: object) -> ServingConfig:
    return ServingConfig(executor="torch", kv_cache_bytes=1 << 21, max_num_seqs=4, **values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model as it is, over two tensor-parallel ranks, and in two stages."""
    root = tmp_path_factory.mktemp("ranks")
    sizes = {**LLAMA_SIZES, "vocab_size": 256, "max_position_embeddings": 1024}
    save_model(transformers.LlamaConfig(**sizes), root / "checkpoint")
    (root / "checkpoint" / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    layouts = {"whole": RankLayout(), "tensor": RankLayout(2, 1), "pipeline": RankLayout(1, 2)}
    return {
        name: import_checkpoint(root / "checkpoint", root / name, precisions=("f32",), ranks=layout).version_dir
        for name, layout in layouts.items()
    }


def answers(replica: Replica) -> list[list[int]]:
    return [replica.generate(prompt, params)[0].token_ids for params in (GREEDY, SAMPLED) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def wanted(versions: dict[str, Path]) -> list[list[int]]:
    with Replica.load(versions["whole"], config()) as replica:
        return answers(replica)


TENSOR = [pytest.param("tensor-mp"), pytest.param("tensor-ray", marks=pytest.mark.slow)]
ALL = [*TENSOR, pytest.param("pipeline-mp")]


@pytest.fixture(scope="module")
def replica(request: pytest.FixtureRequest, versions: dict[str, Path]) -> Iterator[Replica]:
    split, _, backend = request.param.partition("-")
    if backend == "ray":
        pytest.importorskip("ray")
    with Replica.load(versions[split], config(distributed_executor_backend=backend)) as made:
        yield made
        pids = ranks_of(made).pids
    until(lambda: not any(is_running(pid) for pid in pids))  # closing ends the ranks
    if backend == "ray":
        import ray

        ray.shutdown()


def ranks_of(replica: Replica) -> ParallelExecutor:
    assert isinstance(replica.executor, ParallelExecutor)
    return replica.executor


@pytest.mark.parametrize("replica", ALL, indirect=True)
def test_tokens_equal_those_of_one_process(replica: Replica, wanted: list[list[int]]) -> None:
    assert answers(replica) == wanted


@pytest.mark.parametrize("replica", ALL, indirect=True)
def test_the_log_line_names_the_ranks(replica: Replica) -> None:
    assert "ranks 2 (tensor_parallel_size " in replica.describe()


@pytest.mark.parametrize("replica", TENSOR, indirect=True)
def test_a_killed_rank_fails_what_runs_and_the_group_comes_back(replica: Replica, wanted: list[list[int]]) -> None:
    """Four run, one waits behind them: the four end with an error that says why, the fifth is answered by new ranks."""
    ranks = ranks_of(replica)
    before = ranks.num_restarts
    pids = ranks.pids
    outcomes: dict[int, object] = {}
    started = threading.Barrier(5)

    def run(number: int) -> None:
        try:
            events = replica.stream(PROMPTS[0], ENDLESS)
            next(events)
            started.wait(60)
            list(events)
            outcomes[number] = "finished"
        except Exception as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    started.wait(60)
    os.kill(pids[1], signal.SIGSTOP)  # so that none of them ends meanwhile
    late = threading.Thread(
        target=lambda: outcomes.update({4: replica.generate(PROMPTS[1], GREEDY)[0].token_ids}), daemon=True
    )
    late.start()
    until(lambda: replica._loop.admission.num_inside == 5)
    os.kill(pids[1], signal.SIGKILL)
    for thread in [*threads, late]:
        thread.join(120)
    failures = [outcome for number, outcome in sorted(outcomes.items()) if number < 4]
    assert [type(failure) for failure in failures] == [ExecutorFailed] * 4, failures
    assert all("rank 1" in str(failure) and "send the request again" in str(failure) for failure in failures)
    assert outcomes[4] == wanted[1]
    assert ranks.num_restarts == before + 1
    assert answers(replica) == wanted
    assert not set(ranks.pids) & set(pids)
    assert not any(is_running(pid) for pid in pids)


def test_ranks_end_with_their_driver(versions: dict[str, Path]) -> None:
    program = f"""
import os, signal
from pathlib import Path
from trtdecode.config import ServingConfig
from trtdecode.replica import Replica
replica = Replica.load(Path({str(versions["tensor"])!r}), ServingConfig(kv_cache_bytes=1 << 21, max_num_seqs=4))
print(*replica.executor.pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    result = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=120)
    pids = [int(pid) for pid in result.stdout.split()]
    assert len(pids) == 2
    until(lambda: not any(is_running(pid) for pid in pids))


# -- what is refused at load ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "values", "message"),
    [
        ("whole", {"tensor_parallel_size": 2}, r"tensor_parallel_size: got 2, .* imported with 1; .*--tensor-paral"),
        ("tensor", {"tensor_parallel_size": 4}, r"tensor_parallel_size: got 4, .* imported with 2; .*size 4"),
        ("tensor", {"executor": "openvino"}, r"openvino runs on one rank, but the version is split"),
        ("tensor", {"executor": "tensorrt"}, r"tensorrt needs a GPU, but "),
    ],
)
def test_a_configuration_that_does_not_fit_the_version(
    versions: dict[str, Path], version: str, values: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Replica.load(versions[version], ServingConfig(**values))  # type: ignore[arg-type]


def test_where_ranks_run(versions: dict[str, Path]) -> None:
    manifest = read_manifest(versions["tensor"])
    gpus = Devices(gpu_sms=(89, 89), tensorrt_flavour="tensorrt", has_torch=True)

    def choose(kind: str, devices: Devices = gpus, executor: str = "auto") -> tuple[str, str]:
        config = ServingConfig(executor=executor)
        choice = choose_executor(config, manifest, devices, device_kind=kind, device_id=0)
        return choice.executor, choice.device

    assert choose("KIND_MODEL") == ("torch", "cuda")
    assert choose("KIND_CPU") == ("torch", "cpu")
    assert choose("KIND_MODEL", Devices(has_torch=True)) == ("torch", "cpu")
    assert choose("KIND_MODEL", executor="tensorrt") == ("tensorrt", "cuda")
    with pytest.raises(ConfigError, match=r"tensorrt is not installed"):
        choose("KIND_MODEL", Devices(gpu_sms=(89, 89), has_torch=True), "tensorrt")
    with pytest.raises(ConfigError, match=r"tensorrt needs a GPU, but the instance kind is KIND_CPU"):
        choose("KIND_CPU", executor="tensorrt")
    with pytest.raises(ConfigError, match=r"KIND_GPU is one instance a GPU, but the version is split .* use KIND_MODE"):
        choose("KIND_GPU")
    with pytest.raises(ConfigError, match=r"needs torch; pip install"):
        choose("KIND_CPU", Devices())


def test_ranks_of_engines_are_told_what_to_load(versions: dict[str, Path]) -> None:
    """The precision is then the engines'; a task crosses process borders."""
    manifest, engines = read_manifest(versions["tensor"]), EngineTask("tensorrt", ServingConfig(), GpuOptions())
    config = ServingConfig(precision="fp8", executor="tensorrt")
    tasks = rank_tasks(config, manifest, versions["tensor"], "cuda", None, engines)
    assert [(task.device, task.graph_path.parent.name) for task in tasks] == [
        ("cuda:0", "rank_0"),
        ("cuda:1", "rank_1"),
    ]
    assert pickle.loads(pickle.dumps(tasks)) == tasks  # noqa: S301 (our own bytes)
    with pytest.raises(ManifestError, match="fp8"):
        rank_tasks(config, manifest, versions["tensor"], "cuda", None)


def test_mp_needs_every_gpu_here() -> None:
    assert rank_starter(ServingConfig(), 4, "cuda", 4) == "mp"
    assert rank_starter(ServingConfig(), 4, "cuda", 2) == "ray"
    assert rank_starter(ServingConfig(distributed_executor_backend="ray"), 2, "cpu", 0) == "ray"
    with pytest.raises(ConfigError, match="starts 4 ranks on this machine, which has 2 GPUs"):
        rank_starter(ServingConfig(distributed_executor_backend="mp"), 4, "cuda", 2)


def test_a_split_version_on_disk(versions: dict[str, Path]) -> None:
    manifest = read_manifest(versions["tensor"])
    assert (manifest.graphs, manifest.ranks, manifest.spec.num_heads) == ({}, RankLayout(2, 1), 6)
    own = read_manifest(rank_dir(versions["tensor"], 1))
    assert (own.graphs, own.spec.num_heads, own.spec.num_kv_heads) == ({"f32": "decoder.onnx"}, 3, 1)
    stage = read_manifest(rank_dir(versions["pipeline"], 1)).spec
    assert (stage.num_layers, stage.num_heads) == (1, 6)


def is_running(pid: int) -> bool:
    """False for a process that is gone or only waits to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "did not happen within a minute"
        time.sleep(0.02)
