"""A real tritonserver with the chain model, whose crash is reported with its version and never hidden by a retry."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from chain_model import write_chain_checkpoint
from levels import Levels, rss_of
from trtdecode.errors import ServerError
from trtdecode.server.control import RUNTIME_DIR_VARIABLE, ControlSocket, list_control_sockets
from trtdecode.server.launch import TritonServer
from trtdecode.server.processes import shm_regions

MODEL = "chain"


class ServerCrashed(RuntimeError):
    """tritonserver or the stub is gone; the text says which, how, and which version it was."""


def import_chain(folder: Path) -> Path:
    """The version folder of the chain model, f32."""
    from trtbuild.pipeline import import_checkpoint

    source = write_chain_checkpoint(folder / "checkpoint")
    return import_checkpoint(source, folder / MODEL, precisions=("f32",)).version_dir


class WatchedServer:
    """Use as a context manager. `parameters` go into config.pbtxt."""

    def __init__(self, parameters: dict[str, str], version_dir: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="trtdecode-stress-"))
        repository = self._folder / "repository"
        if version_dir is None:
            version_dir = import_chain(self._folder)
        shutil.copytree(version_dir, repository / MODEL / "1", copy_function=os.link)
        lines = [
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()
        ]
        (repository / MODEL / "config.pbtxt").write_text("\n".join(['backend: "trtdecode"', *lines, ""]))
        self._runtime_dir = self._folder / "run"
        self._outer_runtime_dir: str | None = None
        self.server = TritonServer(repository, log_path=self._folder / "server.log")
        self.client = self.server.client
        self._pids: tuple[int, int] = (0, 0)
        self.version = ""

    def __enter__(self) -> WatchedServer:
        self._outer_runtime_dir = os.environ.get(RUNTIME_DIR_VARIABLE)
        os.environ[RUNTIME_DIR_VARIABLE] = str(self._runtime_dir)
        self.server.start()
        self._pids = (self.server.pid, self.stub_pid)
        self.version = str(self.client.call("GET", "/v2").json()["version"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop()
        # Other servers of this process have their sockets elsewhere.
        if self._outer_runtime_dir is None:
            del os.environ[RUNTIME_DIR_VARIABLE]
        else:
            os.environ[RUNTIME_DIR_VARIABLE] = self._outer_runtime_dir
        if error is None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def control(self) -> ControlSocket:
        pids = {stub.pid for stub in self.server.stubs() if stub.is_alive}
        found = [entry for entry in list_control_sockets() if entry.stub_pid in pids]
        if len(found) != 1:
            raise ServerCrashed(self._obituary("the stub"))
        return found[0]

    @property
    def stub_pid(self) -> int:
        return self.control.stub_pid

    def check_alive(self) -> None:
        """Raises ServerCrashed unless server and stub are the processes that were started."""
        if not self.server.is_running:
            raise ServerCrashed(self._obituary("tritonserver"))
        if (self.server.pid, self.stub_pid) != self._pids:
            raise ServerCrashed(self._obituary("the stub"))

    def _obituary(self, who: str) -> str:
        deadline = time.monotonic() + 1.0  # a stub goes with its server, and may be missed first
        while self.server.is_running and time.monotonic() < deadline:
            time.sleep(0.02)
        who, how = (who, "is gone") if self.server.is_running else ("tritonserver", self.server.exit_reason)
        log = self.server.log_path.read_text("utf-8", errors="replace").splitlines()[-30:]
        return f"{who} {how}; tritonserver {self.version} (log: {self.server.log_path})\n" + "\n".join(log)

    def metric(self, name: str) -> float:
        """Sum of one of our metrics."""
        lines = [line for line in self.client.metrics().splitlines() if line.startswith(name + "{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def live(self) -> int:
        """Requests inside the stub that have had no final response."""
        try:
            return int(self.control.ask("status", wait_s=30)["live"])
        except ServerError as error:
            self.check_alive()
            raise ServerCrashed(f"the stub does not answer: {error}") from error

    def levels(self, num_requests: int) -> Levels:
        """Sizes now."""
        self.check_alive()
        regions = shm_regions(self.server.shm_prefix)
        return Levels(
            num_requests,
            {"tritonserver": rss_of(self.server.pid), "stub": rss_of(self.stub_pid)},
            sum(region.stat().st_size for region in regions),
            len(regions),
            int(self.metric("trtdecode_kv_blocks_used") + self.metric("trtdecode_host_blocks_used")),
            self.live(),
        )

    def settle(self, timeout_s: float = 60.0) -> None:
        """Waits until nothing is inside and the gauges say so."""
        wait_until(lambda: not self.live() and not self.metric("trtdecode_kv_blocks_used"), timeout_s)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Polls; returns whether the condition came true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
