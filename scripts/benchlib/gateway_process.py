"""Gateways in processes of their own in front of a tritonserver, and clients that cost little."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain_model import write_chain_checkpoint
from trtdecode.server.control import ControlSocket, list_control_sockets
from trtdecode.server.launch import TritonServer
from trtdecode.server.ports import free_ports

#: Names of the served models: the one that is measured, one that does nothing (an answer is what the way there and
#: back costs), the same again, and the encoder of the semantic cache.
MEASURED, IDLE, IDLE_AGAIN, ENCODER = "measured", "idle", "idle_again", "minilm"

GREEDY = {"temperature": 0, "ignore_eos": True}
START_TIMEOUT_S = 60.0


def write_repository(folder: Path, version_dir: Path, encoder_dir: Path | None = None) -> Path:
    """A model repository with the measured version, the idle model twice, and the encoder if there is one."""
    from trtbuild.pipeline import import_checkpoint

    checkpoint = write_chain_checkpoint(folder / "checkpoint", max_context_len=131_072)
    idle = import_checkpoint(checkpoint, folder / "idle", precisions=("f32",)).version_dir
    versions = {MEASURED: (version_dir, "512MiB"), IDLE: (idle, "64MiB"), IDLE_AGAIN: (idle, "64MiB")}
    for name, (version, pool) in versions.items():
        parameter = f'parameters {{ key: "kv_cache_bytes" value {{ string_value: "{pool}" }} }}'
        _write_model(folder / "repository" / name, version, parameter)
    if encoder_dir is not None:
        _write_model(folder / "repository" / ENCODER, encoder_dir, "")
    return folder / "repository"


def _write_model(folder: Path, version_dir: Path, rest: str) -> None:
    folder.mkdir(parents=True)
    (folder / "1").symlink_to(version_dir.resolve())
    (folder / "config.pbtxt").write_text(f'backend: "trtdecode"\n{rest}\n')


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """A gateway that listens."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Time on a CPU so far, of all threads that live."""
        files = Path(f"/proc/{self.pid}/task").glob("*/schedstat")  # nanoseconds; `stat` counts in hundredths
        return sum(int(file.read_text().split()[0]) for file in files) / 1e9


@contextlib.contextmanager
def gateway_process(
    repository: Path, servers: Sequence[TritonServer], options: Sequence[str | Path] = ()
) -> Iterator[GatewayProcess]:
    """`trtdecode gateway` in front of the servers, ended with the context. Raises RuntimeError if it does not start."""
    port = free_ports().http
    command = [sys.executable, "-c", "from trtdecode.cli import main; main()", "gateway", str(repository)]
    command += [word for server in servers for word in ("--triton", server.grpc_address)]
    command += ["--port", str(port), *map(str, options)]
    log_path = repository.parent / f"gateway-{port}.log"
    with log_path.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait_for(port, process, log_path)
            yield GatewayProcess(port, process.pid)
        finally:
            process.terminate()


def _wait_for(port: int, process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the gateway did not start: {log_path.read_text()[-2000:]}")


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer that was not streamed."""

    seconds: float  # from the first byte sent to the last received
    headers: dict[str, str]  # the gateway's own, x-trtdecode-...
    text: str


class CompletionClient:
    """Asks one at a time over one connection that stays open; answers are not streamed."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=120)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, prompt: str, *, model: str = IDLE, max_tokens: int = 1, **fields: Any) -> TimedAnswer:
        """Raises RuntimeError for anything but a 200."""
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, **GREEDY, **fields}
        seconds, headers, answer = self._post("/v1/completions", body)
        return TimedAnswer(seconds, headers, answer["choices"][0]["text"])

    def embed(self, model: str, text: str) -> float:
        """Seconds of /v1/embeddings for one text. Raises RuntimeError for anything but a 200."""
        seconds, _, _ = self._post("/v1/embeddings", {"model": model, "input": text, "encoding_format": "base64"})
        return seconds

    def _post(self, path: str, body: dict[str, Any]) -> tuple[float, dict[str, str], Any]:
        raw = json.dumps(body).encode()
        begin = time.perf_counter()
        self._connection.request("POST", path, raw, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = response.read()
        seconds = time.perf_counter() - begin
        if response.status != 200:
            raise RuntimeError(f"the gateway answered {response.status}: {answer[:500]!r}")
        headers = {name: value for name, value in response.getheaders() if name.startswith("x-trtdecode-")}
        return seconds, headers, json.loads(answer)

    def close(self) -> None:
        self._connection.close()


def control_of(server: TritonServer, model: str) -> ControlSocket:
    """The control socket of a model's only instance."""
    pids = {stub.pid for stub in server.stubs()}
    found = [entry for entry in list_control_sockets() if entry.stub_pid in pids]
    return next(entry for entry in found if entry.ask("status")["model"] == model)
