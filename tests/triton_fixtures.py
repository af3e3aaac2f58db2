"""Fixtures that start a real tritonserver with our backend, shared by tests/integration and tests/cases.

The servers get folders, ports and a control-socket folder of their own, so that they never meet another server on the
machine.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chain_model import write_chain_checkpoint
from trtdecode.errors import ServerError
from trtdecode.server.control import RUNTIME_DIR_VARIABLE, ControlSocket, list_control_sockets
from trtdecode.server.launch import TritonServer
from trtdecode.server.locate import locate_server

#: Model name -> what its config.pbtxt says beside name and backend. All are the chain model.
CHAIN_CONFIGS = {
    "chain": "",
    "chain_batched": "max_batch_size: 8",
    # One runs, two wait; four priorities; a context so long that a request to its end outlasts any test.
    "chain_small": 'parameters { key: "max_num_seqs" value { string_value: "1" } } '
    'parameters { key: "max_queue_size" value { string_value: "2" } } '
    'parameters { key: "priority_levels" value { string_value: "4" } }',
}
POOL = 'parameters { key: "kv_cache_bytes" value { string_value: "64MiB" } }'


#: A busy machine is several times slower. Waiting is for what never happens; what is slow shows in benchmarks.
PATIENCE = 5.0


def wait_for(condition: Callable[[], object], timeout_s: float = 10.0, what: str = "condition") -> None:
    """Polls until `condition()` is true; fails after PATIENCE times what an idle machine may take."""
    timeout_s *= PATIENCE
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.02)


def metric(server: TritonServer, name: str, model: str, **labels: str) -> float:
    """The value of one metric of one model, summed over the labels not given; 0 when it is not there."""
    wanted = [f'{key}="{value}"' for key, value in {"model": model, **labels}.items()]
    total = 0.0
    for line in server.client.metrics().splitlines():
        if line.startswith(f"{name}{{") and all(label in line for label in wanted):
            total += float(line.rsplit(" ", 1)[1])
    return total


class RunningServer(TritonServer):
    """A test's server, with what tests ask of it."""

    def control(self, model: str) -> ControlSocket:
        """The control socket of the model's only instance."""
        pids = {stub.pid for stub in self.stubs()}
        found = [entry for entry in list_control_sockets() if entry.stub_pid in pids]
        return next(entry for entry in found if entry.ask("status")["model"] == model)

    def stub_pid(self, model: str) -> int:
        return self.control(model).stub_pid

    def used_blocks(self, model: str) -> float:
        return metric(self, "trtdecode_kv_blocks_used", model)

    def is_idle(self, model: str) -> bool:
        """Nothing running or waiting, no block in use, and every request answered."""
        names = ("trtdecode_requests_running", "trtdecode_requests_waiting", "trtdecode_kv_blocks_used")
        return not any(metric(self, name, model) for name in names) and not self.control(model).ask("status")["live"]

    def greedy(self, model: str, prompt: str = "x", max_tokens: int = 10) -> str:
        """The text of a plain greedy request over /generate."""
        body = {"text_input": prompt, "max_tokens": max_tokens, "temperature": 0.0, "exclude_input_in_output": True}
        answer = self.client.generate(model, body)
        assert answer.status == 200, answer.body
        text: str = answer.json()["text_output"]
        return text


@pytest.fixture(scope="session")
def chain_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An imported version folder of the chain model, f32."""
    from trtbuild.pipeline import import_checkpoint

    folder = tmp_path_factory.mktemp("chain")
    source = write_chain_checkpoint(folder / "checkpoint")
    return import_checkpoint(source, folder / "model", precisions=("f32",)).version_dir


@pytest.fixture(scope="session")
def endless_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chain model with a context of 131,072 tokens: at some thousand tokens a second, what runs stays running."""
    from trtbuild.pipeline import import_checkpoint

    folder = tmp_path_factory.mktemp("endless")
    source = write_chain_checkpoint(folder / "checkpoint", max_context_len=131_072)
    return import_checkpoint(source, folder / "model", precisions=("f32",)).version_dir


@pytest.fixture(scope="session")
def smollm2_version(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Path:
    """An imported version folder of SmolLM2-135M-Instruct, INT8."""
    from trtbuild.pipeline import import_checkpoint

    folder = tmp_path_factory.mktemp("smollm2")
    return import_checkpoint(smollm2_gguf, folder / "model", precisions=("int8",)).version_dir


@pytest.fixture(scope="session")
def make_repository(tmp_path_factory: pytest.TempPathFactory, chain_version: Path) -> Callable[..., Path]:
    """A model repository with chain models: name -> the rest of its config.pbtxt. `others`: name -> version folder."""

    def make(configs: dict[str, str], version_dir: Path = chain_version, **others: Path) -> Path:
        repository = tmp_path_factory.mktemp("repository")
        for name, rest in configs.items():
            pool = "" if "kv_cache_bytes" in rest else POOL
            shutil.copytree(others.get(name, version_dir), repository / name / "1", copy_function=os.link)
            (repository / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "trtdecode"\n{pool}\n{rest}\n')
        return repository

    return make


@pytest.fixture(scope="session")
def make_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunningServer]]:
    """A server on a repository, not started yet; keyword arguments are TritonServer's."""
    try:
        locate_server()
    except ServerError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("server")
    runtime_dir = tmp_path_factory.mktemp("run")
    before = os.environ.get(RUNTIME_DIR_VARIABLE)
    os.environ[RUNTIME_DIR_VARIABLE] = str(runtime_dir)
    count = iter(range(1000))

    def make(repository: Path, **options: object) -> RunningServer:
        options.setdefault("log_path", folder / f"server{next(count)}.log")
        return RunningServer(repository, **options)  # type: ignore[arg-type]

    yield make
    if before is None:
        del os.environ[RUNTIME_DIR_VARIABLE]
    else:
        os.environ[RUNTIME_DIR_VARIABLE] = before


@pytest.fixture(scope="session")
def chain_server(
    make_server: Callable[..., RunningServer], make_repository: Callable[..., Path], endless_version: Path
) -> Iterator[RunningServer]:
    """One server with every chain model, for tests that leave it as they found it."""
    with make_server(make_repository(CHAIN_CONFIGS, chain_small=endless_version)) as server:
        yield server


@pytest.fixture(scope="session")
def untouched(chain_server: RunningServer) -> dict[str, tuple[int, str]]:
    """Each chain model's stub and greedy text before any test."""
    return {name: (chain_server.stub_pid(name), chain_server.greedy(name)) for name in CHAIN_CONFIGS}


@pytest.fixture
def post(chain_server: RunningServer, untouched: dict[str, tuple[int, str]]) -> Iterator[Callable[[str], None]]:
    """CASES' POST conditions, checked after the test: nothing running or waiting, all blocks back, the same stubs, and
    the same greedy text as before any test. Calling it checks one model at once."""

    def check(model: str) -> None:
        wait_for(lambda: chain_server.is_idle(model), what=f"{model} idle")
        assert (chain_server.stub_pid(model), chain_server.greedy(model)) == untouched[model]

    yield check
    check("chain")
    for name in CHAIN_CONFIGS:
        wait_for(lambda name=name: chain_server.is_idle(name), what=f"{name} idle")  # type: ignore[misc]
        assert chain_server.stub_pid(name) == untouched[name][0]
