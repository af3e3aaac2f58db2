"""A short soak, in process and against a real server, and that it sees what it looks for."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import soak
from levels import MIB, Levels, differences
from soak_replica import ReplicaSoak
from soak_server import ServerSoak
from traffic_mix import Job, jobs
from triton_fixtures import RunningServer, wait_for
from trtdecode.config import ServingConfig
from trtdecode.kv_cache.block_pool import BlockPool
from watched_server import ServerCrashed, WatchedServer

NUM_REQUESTS = 400


def levels(**changes: object) -> Levels:
    fields = {"num_requests": 1, "rss": {"stub": 100 * MIB}, "shm_bytes": 10, "shm_regions": 1} | changes
    return Levels(**{"blocks_used": 0, "live": 0, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (levels(rss={"stub": 111 * MIB}), "RSS of stub grew by 11.0 MiB (limit 10)"),
        (levels(shm_regions=2, shm_bytes=20), "/dev/shm: 2 regions of 20 bytes, before 1 of 10"),
        (levels(blocks_used=3), "3 KV blocks are still in use"),
        (levels(live=1), "1 requests have had no end"),
    ],
)
def test_what_is_not_back_is_named(after: Levels, text: str) -> None:
    assert differences(levels(), after, 10 * MIB) == [text]
    assert differences(after, levels(), 10 * MIB) == []


def test_jobs_are_those_of_their_seed() -> None:
    first = list(jobs(3, 500))
    assert first == list(jobs(3, 500)) and first != list(jobs(4, 500))
    assert sum(job.leaves_after is not None for job in first) > 100
    assert sum(job.is_bad for job in first) > 3
    assert {job.way for job in first} == {"generate", "generate_stream", "grpc"}


def test_in_process(chain_version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--requests", str(NUM_REQUESTS), "--only", "process", "--version-dir", str(chain_version)]
    assert soak.main([*arguments, "--json", str(tmp_path / "soak.json")]) == 0, capsys.readouterr().out
    result = json.loads((tmp_path / "soak.json").read_text())["process"]
    assert [entry["num_requests"] for entry in result["levels"]] == [0, 40, 200, NUM_REQUESTS]
    assert result["ends"]["cancelled"] > 20 and result["ends"]["length"] > 100


def test_a_leaked_block_is_seen(chain_version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One release that forgets its last block, after which everything else goes on as ever."""
    release = BlockPool.release
    monkeypatch.setattr(BlockPool, "release", lambda pool, block_ids: release(pool, block_ids[:-1]))
    monkeypatch.setattr("trtdecode.loop.Loop.check_integrity", lambda loop: None)
    with ReplicaSoak(
        chain_version, ServingConfig.from_parameters({**soak.PARAMETERS, "kv_cache_bytes": "64MiB"})
    ) as run:
        before = run.levels()
        run.run(jobs(0, 20))
        assert "KV blocks are still in use" in differences(before, run.levels(), 64 * MIB)[0]


@pytest.mark.triton_server
@pytest.mark.usefixtures("make_server")  # skips where there is no tritonserver
def test_against_a_server(chain_version: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--requests", str(NUM_REQUESTS), "--only", "server", "--version-dir", str(chain_version)]
    status = soak.main(arguments)
    told = capsys.readouterr().out
    assert status == 0, told
    assert "server: all is back where it was" in told


@pytest.mark.triton_server
@pytest.mark.usefixtures("make_server")
@pytest.mark.parametrize("victim", ["tritonserver", "stub"])
def test_a_crash_is_reported_with_the_version(chain_version: Path, victim: str) -> None:
    """No retry hides it: the soak ends with what died, how, and which version it was."""
    with WatchedServer(soak.PARAMETERS, chain_version) as watched:
        run = ServerSoak(watched)
        pid = watched.server.pid if victim == "tritonserver" else watched.stub_pid
        caught: list[ServerCrashed] = []

        def send() -> None:
            try:
                run.run(Job("x", {"max_tokens": 200, "ignore_eos": True}, "generate_stream") for _ in range(100_000))
            except ServerCrashed as crash:
                caught.append(crash)

        thread = threading.Thread(target=send)
        thread.start()
        wait_for(lambda: run.ends["answered"] > 5, what="answers")
        os.kill(pid, signal.SIGKILL)
        thread.join(60)
        assert not thread.is_alive() and caught
        assert f"tritonserver {watched.version}" in str(caught[0])
        watched.server.kill()  # a server whose stub is gone would use up its exit timeout
        expected = (
            ("was ended by SIGKILL",) if victim == "tritonserver" else ("the stub", "tritonserver was ended by SIG")
        )
        assert any(how in str(caught[0]) for how in expected)


@pytest.mark.triton_server
def test_other_servers_of_the_process_keep_their_sockets(
    make_server: Callable[..., RunningServer], make_repository: Callable[..., Path], chain_version: Path
) -> None:
    with make_server(make_repository({"chain": ""})) as other:
        stub = other.stub_pid("chain")
        with WatchedServer(soak.PARAMETERS, chain_version) as watched:
            assert watched.stub_pid != stub
        assert other.stub_pid("chain") == stub
