"""`trtdecode serve`: keeps one tritonserver serving, and ends it without losing an answer.

A dead stub, a dead server or a failed liveness probe ends the server (its clients get a broken connection at once
instead of a stream that never ends) and starts a new one. SIGTERM drains first; a second SIGTERM cancels what runs.
"""

from __future__ import annotations

import contextlib
import http.client
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from trtdecode.errors import ServerError
from trtdecode.server.companion import Companion
from trtdecode.server.drain import drain
from trtdecode.server.health import Liveness, StubWatch, hung_load
from trtdecode.server.launch import TritonServer
from trtdecode.server.locate import ServerInstallation
from trtdecode.server.ports import Ports

#: Tells the stub how often its supervisor has restarted the server; it becomes a metric.
RESTARTS_VARIABLE = "TRTDECODE_RESTARTS"


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    """All in seconds unless named otherwise."""

    poll_s: float = 0.5
    ready_timeout_s: float = 300.0  # from launch to /v2/health/ready
    liveness_interval_s: float = 5.0
    liveness_timeout_s: float = 30.0
    liveness_failures: int = 2  # in a row, before a restart
    first_backoff_s: float = 0.5  # doubles with each restart in a row
    max_backoff_s: float = 30.0
    healthy_after_s: float = 60.0  # up for this long: the next failure starts from the first backoff again
    max_failed_starts: int = 5  # in a row: give up
    drain_timeout_s: float = 30.0
    exit_timeout_s: int = 10


class Supervisor:
    """Runs servers one after the other until told to stop.

    Args:
        make_server: a server that is not started yet, given the number of restarts so far.
        log: one line a call.
        on_ready: called after each start.
        companion: what serves beside the server; it outlives the server's restarts, and finishes its work while the
            server drains.
    """

    def __init__(
        self,
        make_server: Callable[[int], TritonServer],
        options: SupervisorOptions,
        *,
        log: Callable[[str], None] = print,
        on_ready: Callable[[TritonServer], None] | None = None,
        companion: Companion | None = None,
    ) -> None:
        self._make_server = make_server
        self._options = options
        self._log = log
        self._on_ready = on_ready
        self._companion = companion
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self.num_restarts = 0

    def stop(self) -> None:
        """Drain and end; called again, cancel and end. Safe in a signal handler."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def run(self) -> int:
        """Serves until `stop`.

        Returns:
            0 after a stop; 1 when the server could not be started again.

        Raises:
            ServerError: the first start failed (nothing has been served yet, so trying again would not help).
        """
        try:
            return self._serve()
        finally:
            if self._companion:  # already ended unless the server failed
                self._companion.begin_end()
                self._companion.wait_end(self._options.exit_timeout_s)

    def _serve(self) -> int:
        backoff, failed_starts = self._options.first_backoff_s, 0
        while not self._stop.is_set():
            begin = time.monotonic()
            server = self._make_server(self.num_restarts)
            try:
                server.start(self._options.ready_timeout_s)
                failed_starts = 0
                if self._companion:
                    self._companion.start()
                if self._on_ready:
                    self._on_ready(server)
                reason = self._watch(server)
                if reason is None:
                    return self._drain_and_stop(server)
            except ServerError as error:
                if self.num_restarts == 0:
                    raise
                failed_starts += 1
                reason = str(error)
            finally:
                server.kill()
            if failed_starts >= self._options.max_failed_starts:
                self._log(f"giving up after {failed_starts} failed starts: {reason}")
                return 1
            if time.monotonic() - begin > self._options.healthy_after_s:
                backoff = self._options.first_backoff_s
            self.num_restarts += 1
            self._log(f"{reason}; restarting tritonserver in {backoff:g} s (restart {self.num_restarts})")
            self._stop.wait(backoff)
            backoff = min(2 * backoff, self._options.max_backoff_s)
        return 0

    def _watch(self, server: TritonServer) -> str | None:
        """Blocks until the server must be restarted (returns why) or `stop` was called (returns None)."""
        stubs, liveness = StubWatch(), Liveness(self._options.liveness_timeout_s)
        failures = 0
        next_liveness = time.monotonic() + self._options.liveness_interval_s
        while not self._stop.wait(self._options.poll_s):
            if not server.is_running:
                return f"tritonserver {server.exit_reason}"
            # An unreachable index is the liveness probe's business.
            with contextlib.suppress(OSError, http.client.HTTPException, ServerError):
                seen, index = server.stubs(), server.client.index()
                if reason := stubs.look(seen, index) or hung_load(seen, index):
                    return reason
            if time.monotonic() >= next_liveness:
                reason = liveness.check(server.client)
                failures = failures + 1 if reason else 0
                if reason and failures >= self._options.liveness_failures:
                    return reason
                next_liveness = time.monotonic() + self._options.liveness_interval_s
        return None

    def _drain_and_stop(self, server: TritonServer) -> int:
        self._log(f"draining (up to {self._options.drain_timeout_s:g} s; signal again to cancel what runs)")
        if self._companion:
            self._companion.begin_end()  # it passes on what the server finishes meanwhile
        thread = threading.Thread(target=self._drain, args=(server.pid, False), name="drain", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
            if self._hurry.is_set():
                self._drain(server.pid, True)
                break
        if self._companion:
            self._companion.wait_end(self._options.exit_timeout_s)
        server.stop()
        self._log("stopped")
        return 0

    def _drain(self, server_pid: int, cancel: bool) -> None:
        # A server without our models has nobody to ask; it is simply stopped.
        with contextlib.suppress(ServerError):
            for report in drain(server_pid=server_pid, cancel=cancel, timeout_s=self._options.drain_timeout_s):
                state = "drained" if report.drained else f"not drained, {report.live} left {report.error}"
                self._log(f"{report.instance}: {state} after {report.seconds:.1f} s")


def serve(
    repository: Path,
    *,
    ports: Ports,
    host: str = "127.0.0.1",
    installation: ServerInstallation | None = None,
    log_path: Path | None = None,
    extra_arguments: Sequence[str] = (),
    options: SupervisorOptions | None = None,
    log: Callable[[str], None] = print,
    on_ready: Callable[[TritonServer], None] | None = None,
    companion: Companion | None = None,
) -> int:
    """Supervised serving in the foreground, until SIGTERM or SIGINT; returns the exit status (0 after a signal)."""
    chosen = options or SupervisorOptions()

    def make_server(num_restarts: int) -> TritonServer:
        return TritonServer(
            repository,
            installation=installation,
            ports=ports,
            host=host,
            log_path=log_path,
            extra_arguments=extra_arguments,
            environment={RESTARTS_VARIABLE: str(num_restarts)},
            exit_timeout_s=chosen.exit_timeout_s,
        )

    supervisor = Supervisor(make_server, chosen, log=log, on_ready=on_ready, companion=companion)
    with _handle_signals(supervisor.stop):
        return supervisor.run()


@contextlib.contextmanager
def _handle_signals(stop: Callable[[], None]) -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        stop()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
