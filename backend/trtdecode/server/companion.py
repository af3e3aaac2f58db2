"""A process that serves beside tritonserver (the gateway): started with it, replaced when it dies, ended before it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence

_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0


class Companion:
    """Keeps one command running, from `start` to `begin_end`.

    Args:
        name: for the log.
        command: argv. It ends by itself, soon after SIGTERM, when its work is done.
        log: one line a call.
    """

    def __init__(self, name: str, command: Sequence[str], log: Callable[[str], None] = print) -> None:
        self._name = name
        self._command = list(command)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._lock = threading.Lock()  # between launching and ending
        self._thread: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts it, once: further calls do nothing, so that a restart of the server may call this too."""
        if self._thread is None and not self._ending.is_set():
            self._launch()
            self._thread = threading.Thread(target=self._keep, name=f"trtdecode-{self._name}", daemon=True)
            self._thread.start()

    def _launch(self) -> None:
        with self._lock:
            if not self._ending.is_set():
                # A session of its own: Ctrl-C at the terminal must reach the supervisor alone, which knows the order.
                self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)

    def _keep(self) -> None:
        backoff = _FIRST_BACKOFF_S
        while True:
            assert self._process is not None
            status = self._process.wait()
            if self._ending.is_set():
                return
            self._log(f"the {self._name} ended with {status}; starting it again in {backoff:g} s")
            if self._ending.wait(backoff):
                return
            backoff = min(2 * backoff, _MAX_BACKOFF_S)
            self._launch()

    def begin_end(self) -> None:
        """Sends SIGTERM: it takes no new work and finishes what it has. Does not wait."""
        with self._lock:
            self._ending.set()
        self._signal(signal.SIGTERM)

    def wait_end(self, timeout_s: float) -> None:
        """Waits for its end, and kills it after the timeout."""
        if self._process is None:
            return
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._log(f"the {self._name} did not end within {timeout_s:g} s; killing it")
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
