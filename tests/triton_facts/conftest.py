"""One tritonserver with tiny models; the facts are about the server, so each test names it in its failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trtdecode.errors import ServerError
from trtdecode.server.launch import TritonServer
from trtdecode.server.locate import locate_server

MODEL_FILE = Path(__file__).parent / "models" / "probe.py"

#: Model name -> what its config.pbtxt says beside the backend.
WARM_UP = (
    'model_warmup [ { name: "empty" batch_size: 1 inputs { key: "text_input" '
    "value { data_type: TYPE_STRING dims: [ 1 ] zero_data: true } } } ]"
)
CONFIGS = {
    "probe": "",
    "killed": "",
    "unloaded": "",
    "ordered": "max_batch_size: 4 dynamic_batching { preserve_ordering: true }",
    "batched": "max_batch_size: 4 dynamic_batching { }",
    "policy": "max_batch_size: 4 dynamic_batching { priority_levels: 2 default_priority_level: 1 }",
    "graphs": "dynamic_batching { } optimization { cuda { graphs: true graph_spec [ { batch_size: 1 } ] } }",
    "warm": WARM_UP,
}


def write_models(repository: Path, names: list[str]) -> None:
    for name in names:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_bytes(MODEL_FILE.read_bytes())
        rest = CONFIGS.get(name, WARM_UP)
        (repository / name / "config.pbtxt").write_text(f'backend: "python"\n{rest}\n')


@pytest.fixture(scope="session")
def make_probe_server(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TritonServer]:
    """A server that is not started yet, with the models named."""

    def make(*names: str, exit_timeout_s: int = 10) -> TritonServer:
        folder = tmp_path_factory.mktemp("facts")
        write_models(folder / "models", list(names))
        return TritonServer(folder / "models", log_path=folder / "server.log", exit_timeout_s=exit_timeout_s)

    try:
        locate_server()
    except ServerError as error:
        pytest.skip(str(error))
    return make


@pytest.fixture(scope="session")
def probe_server(make_probe_server: Callable[..., TritonServer]) -> Iterator[TritonServer]:
    with make_probe_server(*CONFIGS) as server:
        version = server.client.call("GET", "/v2").json()["version"]
        print(f"\ntritonserver {version} ({server.installation.origin})")
        yield server
