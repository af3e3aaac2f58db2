"""A model over two ranks under a real tritonserver: its stub starts them, and outlives one that is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from random_model import write_random_version
from triton_fixtures import RunningServer, metric, wait_for
from trtbuild.pipeline import import_checkpoint
from trtdecode.config import ServingConfig
from trtdecode.manifest import RankLayout
from trtdecode.replica import Replica
from trtdecode.sampling.params import SamplingParams

pytestmark = pytest.mark.triton_server

POOL = 'parameters { key: "kv_cache_bytes" value { string_value: "8MiB" } }'
KIND = "instance_group [ { count: 1, kind: KIND_MODEL } ]"
SIZE = 'parameters { key: "tensor_parallel_size" value { string_value: "2" } }'


def children_of(pid: int) -> list[int]:
    """Processes whose parent is `pid`, in the order in which they started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for path in tasks for child in path.read_text().split())


def ranks_of(stub_pid: int) -> list[int]:
    return [pid for pid in children_of(stub_pid) if b"spawned_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_ranks_under_tritonserver(
    make_server: Callable[..., RunningServer], make_repository: Callable[..., Path], tmp_path: Path
) -> None:
    _, whole = write_random_version(tmp_path)
    split = import_checkpoint(
        tmp_path / "checkpoint", tmp_path / "split", precisions=("f32",), ranks=RankLayout(2, 1)
    ).version_dir
    with Replica.load(whole, ServingConfig(executor="torch", kv_cache_bytes=1 << 22)) as replica:
        wanted = replica.generate("Hello", SamplingParams(max_tokens=20, temperature=0.0))[0].text
    with make_server(make_repository({"split": f"{POOL} {KIND} {SIZE}"}, split)) as server:
        assert server.greedy("split", "Hello", 20) == wanted
        status = server.control("split").ask("status")["executor"]
        assert status.startswith("executor torch on cpu: the version is split (tensor_parallel_size 2, ")
        ranks = ranks_of(server.stub_pid("split"))
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGSTOP)  # so that the request is running for sure
        answers = []
        body = {"text_input": "Hello", "max_tokens": 20}
        client = threading.Thread(target=lambda: answers.append(server.client.generate("split", body)))
        client.start()
        wait_for(lambda: metric(server, "trtdecode_requests_running", "split") == 1, what="a running request")
        os.kill(ranks[1], signal.SIGKILL)
        client.join(60)
        assert answers[0].status != 200  # /generate of Triton 2.51 makes 400 of any error
        assert "rank 1 of 2 ended (signal 9); the ranks are being started again" in str(answers[0].body)
        assert server.greedy("split", "Hello", 20) == wanted  # by the new ranks
        new = ranks_of(server.stub_pid("split"))
        assert not set(ranks) & set(new)
        wait_for(lambda: server.is_idle("split"), what="an idle model")
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in new), what="the ranks' end with the server")
