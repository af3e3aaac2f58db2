"""Ranks as child processes on this machine, over one socket pair each."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import trtdecode
from trtdecode.executor.base import Batch, BatchResult
from trtdecode.executor.ranks.group import START_TIMEOUT_S, RankLost
from trtdecode.executor.ranks.task import RankFacts, RankTask

_WORKER_MODULE = "trtdecode.executor.ranks.spawned_worker"
_END_S = 5.0
_LOOK_S = 0.5  # for a process that has just closed its socket to be gone


class SpawnedRanks:
    """See `group.RankGroup`. Raises RankLost where a rank does not come up."""

    def __init__(self, tasks: Sequence[RankTask], *, start_timeout_s: float = START_TIMEOUT_S) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="trtdecode-ranks-"))
        self._answering = next(task.rank for task in tasks if task.answers)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        try:
            for task in tasks:
                self._spawn(task)
            self._facts: list[RankFacts] = self._gather(start_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """By rank."""
        return [process.pid for process in self._processes]

    def facts(self) -> list[RankFacts]:
        return self._facts

    def execute(self, batch: Batch) -> BatchResult:
        message = pickle.dumps(batch, pickle.HIGHEST_PROTOCOL)
        for rank, connection in enumerate(self._connections):
            try:
                connection.send_bytes(message)
            except OSError as error:
                raise self._lost(rank, str(error)) from error
        result: BatchResult = self._gather(None)[self._answering]
        return result

    def close(self) -> None:
        for connection in self._connections:
            connection.close()  # a rank ends when its socket does
        deadline = time.monotonic() + _END_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._connections.clear()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _spawn(self, task: RankTask) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            search = [str(Path(trtdecode.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
            process = subprocess.Popen(
                [python_executable(), "-m", _WORKER_MODULE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                # All ranks are on this machine; a host name that resolves to nothing must not matter.
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, search)),
                    "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
                },
            )
        self._processes.append(process)
        self._connections.append(Connection(ours.detach()))
        self._connections[-1].send((task, f"file://{self._scratch / 'meeting-place'}"))

    def _gather(self, timeout_s: float | None) -> list[Any]:
        """One answer of every rank, by rank."""
        answers: dict[int, Any] = {}
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        ranks = {connection: rank for rank, connection in enumerate(self._connections)}
        while len(answers) < len(self._connections):
            waiting = [connection for connection, rank in ranks.items() if rank not in answers]
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = wait(waiting, left)
            if not ready:
                raise self._lost(ranks[waiting[0]], f"no answer after {timeout_s:g} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = ranks[connection]
                try:
                    failure, answers[rank] = connection.recv()
                except (EOFError, OSError):
                    failure = "its connection broke"
                if failure:
                    raise self._lost(rank, failure)
        return [answers[rank] for rank in range(len(answers))]

    def _lost(self, rank: int, failure: str) -> RankLost:
        """The error for a failure seen at `rank`: when a rank dies, others fail too, so the dead one is named."""
        deadline = time.monotonic() + _LOOK_S
        while True:
            for number, process in enumerate(self._processes):
                if (code := process.poll()) is not None:
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    return RankLost(f"rank {number} of {len(self._processes)} ended ({how})")
            if time.monotonic() > deadline:
                return RankLost(f"rank {rank} of {len(self._processes)} failed: {failure}")
            time.sleep(0.02)


def python_executable() -> str:
    """The interpreter for a rank. Inside Triton's stub `sys.executable` is not Python's, but `sys.prefix` holds."""
    if Path(sys.executable or "").name.startswith("python"):
        return sys.executable
    return str(Path(sys.prefix) / "bin" / "python3")
