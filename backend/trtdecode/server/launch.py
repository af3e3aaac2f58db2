"""Starts one tritonserver, waits until it is ready, and ends it with everything it left behind."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from trtdecode.errors import ServerError
from trtdecode.server import processes
from trtdecode.server.backend_dir import BACKEND_NAME, assemble_backend_dir
from trtdecode.server.client import ServerClient
from trtdecode.server.health import HUNG_AFTER_S, seconds_since_loaded
from trtdecode.server.locate import ServerInstallation, check_python, library_path, locate_server
from trtdecode.server.ports import Ports, check_ports, free_ports

log = logging.getLogger(__name__)

_START_ATTEMPTS = 3
STUB_TIMEOUT_S = 600
SHM_PREFIX = "trtdecode_"


class _FailedStartError(ServerError):
    """A crash or a hang of tritonserver itself, before it was ready."""


class TritonServer:
    """One tritonserver process and its stubs, in a process group of their own.

    Usable as a context manager: `with TritonServer(repository) as server:` starts and stops it.

    Args:
        repository: the model repository.
        installation: default `locate_server()`.
        ports: default three free ones.
        host: address to listen on.
        log_path: file for the server's and the stubs' output (appended); default a new temporary file.
        explicit: load and unload on request (`--model-control-mode=explicit`); models in `load` are loaded at start,
            and "*" means all.
        extra_arguments: more arguments for tritonserver.
        environment: added to this process's environment.
        exit_timeout_s: what tritonserver gets as `--exit-timeout-secs`.
    """

    def __init__(
        self,
        repository: Path,
        *,
        installation: ServerInstallation | None = None,
        ports: Ports | None = None,
        host: str = "127.0.0.1",
        log_path: Path | None = None,
        explicit: bool = True,
        load: Sequence[str] = ("*",),
        extra_arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        exit_timeout_s: int = 10,
    ) -> None:
        check_python()
        if not repository.is_dir():
            raise ServerError(f"model repository {repository} is not a folder; import a model with `trtdecode import`")
        self.repository = repository
        self.installation = installation or locate_server()
        self.ports = ports or free_ports()
        self.host = host
        self.log_path = log_path or Path(tempfile.mkstemp(prefix="tritonserver.", suffix=".log")[1])
        self.shm_prefix = f"{SHM_PREFIX}{os.getpid()}_{uuid.uuid4().hex[:8]}_"
        self.exit_timeout_s = exit_timeout_s
        self._control = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in load)]
        if not explicit:
            self._control = ["--model-control-mode=none"]
        self._extra_arguments = list(extra_arguments)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._log_start = 0
        connect_host = "127.0.0.1" if host == "0.0.0.0" else host
        self.http_address = f"{connect_host}:{self.ports.http}"
        self.grpc_address = f"{connect_host}:{self.ports.grpc}"
        self.metrics_address = f"{connect_host}:{self.ports.metrics}"
        self.client = ServerClient(connect_host, self.ports.http, self.ports.metrics)

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Raises ServerError when not started."""
        if self._process is None:
            raise ServerError("tritonserver is not started; call start()")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_reason(self) -> str:
        """How tritonserver ended; "runs" while it has not."""
        status = self._process.poll() if self._process is not None else None
        if status is None:
            return "runs"
        return f"exited with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"

    def stubs(self) -> list[processes.StubProcess]:
        """The stub processes of this server."""
        return processes.list_stubs(self.pid)

    def start(self, timeout_s: float = 120.0) -> None:
        """Launches and waits for /v2/health/ready.

        A server that dies of a signal before it has served anything, or hangs although its stubs are ready, is launched
        again, twice at most, and that is logged as a warning: under load 2.51 does either now and then while it starts
        a stub.

        Raises:
            ServerError: busy port, exit during start-up (with the log's own reason), or not ready in time.
        """
        check_ports(self.ports, self.host)
        if orphans := processes.remove_orphaned_regions(SHM_PREFIX):
            log.warning("removed %d shared-memory regions left by a launcher that was killed", len(orphans))
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._launch()
            try:
                self._wait_ready(timeout_s)
                return
            except _FailedStartError as error:
                self.kill()
                if attempt == _START_ATTEMPTS:
                    raise
                log.warning("%s; starting it again (attempt %d)", error, attempt + 1)
            except BaseException:
                self.kill()
                raise

    def _launch(self) -> None:
        self._log = self.log_path.open("ab")
        self._log_start = self._log.tell()
        self._process = subprocess.Popen(
            self.command(),
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own: stopping it can never hit anything else
        )

    def command(self) -> list[str]:
        """The command line, for the log and for people."""
        backend_dir = assemble_backend_dir(self.installation)
        return [
            str(self.installation.binary),
            f"--model-repository={self.repository}",
            f"--backend-directory={backend_dir}",
            *(f"--{kind}-address={self.host}" for kind in ("http", "grpc", "metrics")),
            f"--http-port={self.ports.http}",
            f"--grpc-port={self.ports.grpc}",
            f"--metrics-port={self.ports.metrics}",
            *self._control,
            f"--exit-timeout-secs={self.exit_timeout_s}",
            # A prefix of our own tells this server's regions from everybody else's.
            *(
                f"--backend-config={backend},{setting}"
                for backend in ("python", BACKEND_NAME)
                for setting in (
                    f"shm-region-prefix-name={self.shm_prefix}",
                    # The default of 30 s is shorter than a cold load on a busy machine, and after it Triton waits for
                    # ever for a stub that is well and waits for Triton.
                    f"stub-timeout-seconds={STUB_TIMEOUT_S}",
                )
            ),
            *self._extra_arguments,
        ]

    def environment(self) -> dict[str, str]:
        """The server's environment: the stub finds packages through the first `python3` on PATH."""
        environment = {**os.environ, **self._environment}
        python_bin = str(Path(sys.executable).parent)
        environment["PATH"] = os.pathsep.join([python_bin, environment.get("PATH", os.defpath)])
        libraries = [*library_path(self.installation), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(folder for folder in libraries if folder)
        return environment

    def _wait_ready(self, timeout_s: float) -> None:
        begin = time.monotonic()
        while not self.client.is_ready():
            if not self.is_running:
                assert self._process is not None
                status = self._process.returncode
                if status < 0:
                    name = signal.Signals(-status).name
                    raise _FailedStartError(f"tritonserver crashed during start-up ({name}; log: {self.log_path})")
                raise ServerError(f"tritonserver exited during start-up: {self._reason()} (log: {self.log_path})")
            waited = time.monotonic() - begin
            if waited > HUNG_AFTER_S and (hung := self._hung_model()):
                raise _FailedStartError(f"tritonserver hangs in the load of {hung} (log: {self.log_path})")
            if waited > timeout_s:
                raise ServerError(
                    f"tritonserver was not ready after {timeout_s:g} s: {self._reason()} (log: {self.log_path})"
                )
            time.sleep(0.05)

    def _hung_model(self) -> str | None:
        """A model whose stubs have long been ready while the log does not say that Triton took it."""
        log_bytes, stubs = self.log_path.read_bytes()[self._log_start :], self.stubs()
        for model in sorted(entry.name for entry in self.repository.iterdir() if entry.is_dir()):
            seconds = seconds_since_loaded(model, stubs)
            if seconds and seconds > HUNG_AFTER_S and f"successfully loaded '{model}'".encode() not in log_bytes:
                return model
        return None

    def _reason(self) -> str:
        """The last error line of the log, without Triton's prefix."""
        lines = self.log_path.read_text("utf-8", errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("E") and "] " in line] or lines
        return errors[-1].split("] ", 1)[-1].strip('"') if errors else "the log is empty"

    def stop(self, timeout_s: float | None = None) -> int:
        """SIGTERM, then SIGKILL to the group after `timeout_s` (default `exit_timeout_s` + 5 s); then tidies up.

        Returns the exit status (negative: the signal that ended it). A no-op after the first call.
        """
        if self._process is None:
            return 0
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.exit_timeout_s + 5 if timeout_s is None else timeout_s)
        return self.kill()

    def kill(self) -> int:
        """Ends what is left of the group at once, and removes its shared-memory regions."""
        if self._process is None:
            return 0
        group = self._process.pid
        if self._process.poll() is None or processes.group_members(group):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        status = self._process.wait()
        deadline = time.monotonic() + 5
        while processes.group_members(group) and time.monotonic() < deadline:
            time.sleep(0.01)
        processes.remove_shm_regions(self.shm_prefix)
        if self._log is not None:
            self._log.close()
            self._log = None
        return status
