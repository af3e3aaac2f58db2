"""A Unix socket by which a stub is told to drain, and asked how it is.

Triton tells a Python model nothing before its last request is released, so draining needs a way in of its own. A
socket answers when the work is done, which a signal cannot. One line of JSON each way:

    {"command": "drain", "cancel": false, "timeout_s": 30}  ->  {"ok": true, "drained": true, "live": 0}
    {"command": "resume"}                                   ->  {"ok": true}
    {"command": "status"}                                   ->  {"ok": true, "model": "smollm2", "live": 3, ...}
    {"command": "inspect"}                                  ->  {"ok": true, "blocks": [[7, 12], [0, 88]], ...}
    {"command": "poll"}                                     ->  {"ok": true}

`poll` says that a client has just left, so that the stub asks Triton which. `inspect` is the map of KV blocks
(`kv_cache/block_map.py`), and which caller and trace each sequence belongs to.
The sockets lie in one folder per user (or $TRTDECODE_RUNTIME_DIR), readable by that user alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtdecode.errors import ServerError

RUNTIME_DIR_VARIABLE = "TRTDECODE_RUNTIME_DIR"
_MAX_LINE = 1 << 20
_ANSWER_TIMEOUT_S = 5.0
_RETRY_S = 0.01


def runtime_dir() -> Path:
    """The folder of the sockets, made if need be.

    Raises:
        ServerError: somebody else owns it.
    """
    named = os.environ.get(RUNTIME_DIR_VARIABLE)
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"trtdecode-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder.stat().st_uid
    if owner != os.getuid():
        raise ServerError(f"{folder} belongs to user {owner}; set {RUNTIME_DIR_VARIABLE} to a folder of your own")
    return folder


class ControlServer:
    """Answers commands in a thread of the stub.

    Args:
        name: model instance, in the socket's name.
        handlers: command -> function from the request to the answer's fields; what it raises becomes the error.
    """

    def __init__(self, name: str, handlers: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
        self.path = runtime_dir() / f"{os.getpid()}-{name[:40]}.sock"
        self.path.unlink(missing_ok=True)
        control_handlers = dict(handlers)

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                answer = _answer(self.rfile.readline(_MAX_LINE), control_handlers)
                with contextlib.suppress(OSError):  # the asker may have left
                    self.wfile.write(json.dumps(answer).encode() + b"\n")

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

        self._server = Server(str(self.path), Handler)
        self.path.chmod(0o600)
        self._thread = threading.Thread(target=self._server.serve_forever, name="trtdecode-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops answering and removes the socket."""
        self._server.shutdown()
        self._server.server_close()
        self.path.unlink(missing_ok=True)


def _answer(line: bytes, handlers: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]) -> dict[str, Any]:
    try:
        request = json.loads(line)
        command = request["command"]
        if command not in handlers:
            raise ValueError(f"unknown command {command!r}; known: {', '.join(sorted(handlers))}")
        return {"ok": True, **handlers[command](request)}
    except Exception as error:  # a bad command must not end the control thread
        return {"ok": False, "error": str(error)}


@dataclass(frozen=True, slots=True)
class ControlSocket:
    """One stub's socket, as seen from outside."""

    path: Path

    @property
    def stub_pid(self) -> int:
        return int(self.path.name.split("-", 1)[0])

    @property
    def instance(self) -> str:
        return self.path.stem.split("-", 1)[1]

    @property
    def made_at(self) -> float:
        """Seconds since the epoch; 0 when it is gone."""
        try:
            return self.path.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def ask(self, command: str, wait_s: float = _ANSWER_TIMEOUT_S, **fields: Any) -> dict[str, Any]:
        """Sends one command and waits for the answer.

        Raises:
            ServerError: the stub is gone, silent for `wait_s`, or refused the command.
        """
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                self._connect(connection, wait_s)
                connection.sendall(json.dumps({"command": command, **fields}).encode() + b"\n")
                answer: dict[str, Any] = json.loads(connection.makefile("rb").readline(_MAX_LINE))
        except (OSError, ValueError) as error:
            raise ServerError(f"stub {self.stub_pid} ({self.instance}) does not answer {command!r}: {error}") from error
        if not answer.get("ok"):
            raise ServerError(f"stub {self.stub_pid} ({self.instance}) refused {command!r}: {answer.get('error')}")
        return answer

    def _connect(self, connection: socket.socket, wait_s: float) -> None:
        """Connects. Where too many others wait to be accepted, Linux says so at once instead of waiting."""
        connection.settimeout(wait_s)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                connection.connect(str(self.path))
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY_S)


def list_control_sockets() -> list[ControlSocket]:
    """Sockets of live stubs; those of dead ones are removed."""
    found = []
    for path in sorted(runtime_dir().glob("*-*.sock")):
        entry = ControlSocket(path)
        if path.name.split("-", 1)[0].isdigit() and Path(f"/proc/{entry.stub_pid}").exists():
            found.append(entry)
        else:
            path.unlink(missing_ok=True)
    return found
