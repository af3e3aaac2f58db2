"""The systems that `scripts/bench serving` compares, behind one interface: prompts in, seconds and tokens out."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from many_streams import ManyStreams
from own_settings import precision_of

PEERS = Path(__file__).parent / "peers"


class Unavailable(Exception):
    """A system that cannot run here, and why."""


class System(Protocol):
    """One system, started; `measure` blocks until every prompt has its tokens."""

    name: str
    about: dict[str, str]  # version and precision
    max_concurrency: int  # beyond it the system is not measured; 0: no limit

    def measure(self, prompts: list[list[int]], num_tokens: list[int]) -> tuple[float, int]:
        """Seconds, and tokens generated in all; so many for each prompt."""
        ...

    def close(self) -> None: ...


class Process:
    """A system in a process of its own that speaks peers/protocol.py."""

    max_concurrency = 0

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
            )
        first = self._read()
        if first is None:
            lines = log.read_text("utf-8", "replace").strip().splitlines()
            raise Unavailable(f"{name} did not start: {lines[-1] if lines else 'no output'}")
        self.about: dict[str, str] = first

    def measure(self, prompts: list[list[int]], num_tokens: list[int]) -> tuple[float, int]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "num_tokens": num_tokens}) + "\n")
        reply = self._read()
        if reply is None or "error" in reply:
            raise Unavailable(f"{self.name}: {reply['error'] if reply else 'the process ended'}")
        return reply["seconds"], reply["num_tokens"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _read(self) -> dict | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None


class Triton:
    """Ours behind tritonserver, over gRPC; streaming and not are two systems on one server."""

    max_concurrency = 0

    def __init__(self, name: str, server: TritonBench, *, stream: bool) -> None:
        self.name = name
        self.about = {"version": "this checkout", "precision": server.precision}
        self._server = server
        self._stream = stream

    def measure(self, prompts: list[list[int]], num_tokens: list[int]) -> tuple[float, int]:
        def request(prompt: list[int], number: int) -> Any:
            sampling = {"temperature": 0.0, "max_tokens": number, "ignore_eos": True}
            return self._server.client.request(prompt, sampling, stream=self._stream)

        requests = list(map(request, prompts, num_tokens))
        start = time.perf_counter()
        total = self._server.streams.count_tokens(requests)
        return time.perf_counter() - start, total

    def close(self) -> None:
        self._server.close()


def end_on_sigterm() -> None:
    """A bench that is told to end stops its servers: SIGTERM becomes SystemExit, which runs every `finally`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


class TritonBench:
    """The server and clients of it. Closing twice is allowed."""

    def __init__(self, version_dir: Path, parameters: dict[str, str]) -> None:
        from trtdecode.client import StreamClient
        from trtdecode.server.launch import TritonServer

        self._folder = Path(tempfile.mkdtemp(prefix="trtdecode-bench-"))
        model = self._folder / "bench"
        model.mkdir()
        (model / "1").symlink_to(version_dir.resolve(), target_is_directory=True)
        lines = [f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in parameters.items()]
        (model / "config.pbtxt").write_text('backend: "trtdecode"\n' + "\n".join(lines) + "\n")
        self.server = TritonServer(self._folder, log_path=self._folder / "server.log")
        self.server.start(300)
        self.client = StreamClient(self.server.grpc_address, "bench")
        self.streams = ManyStreams(self.server.grpc_address)
        self.precision = _precision_line(self._folder / "server.log")

    def close(self) -> None:
        self.client.close()
        self.streams.close()
        self.server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class PlainTriton:
    """A Python-backend model that calls transformers. It answers one request after another, so a few show its rate."""

    name = "triton-python-transformers"
    max_concurrency = 8

    def __init__(self, gguf: Path, threads: int) -> None:
        from trtdecode.server.launch import TritonServer

        self._folder = Path(tempfile.mkdtemp(prefix="trtdecode-bench-plain-"))
        model = self._folder / "plain"
        (model / "1").mkdir(parents=True)
        source = Path(__file__).parent / "plain_model"
        shutil.copyfile(source / "model.py", model / "1" / "model.py")
        config = (source / "config.pbtxt.in").read_text()
        (model / "config.pbtxt").write_text(config.replace("@GGUF@", str(gguf)).replace("@THREADS@", str(threads)))
        self._server = TritonServer(self._folder, log_path=self._folder / "server.log")
        try:
            self._server.start(300)
        except Exception as error:
            raise Unavailable(f"{self.name}: {error}") from error
        import transformers

        self.about = {"version": transformers.__version__, "precision": "f32 weights, f32 KV"}
        self._pool = ThreadPoolExecutor(self.max_concurrency)

    def measure(self, prompts: list[list[int]], num_tokens: list[int]) -> tuple[float, int]:
        import numpy as np
        import tritonclient.grpc as grpcclient

        client = grpcclient.InferenceServerClient(self._server.grpc_address)

        def one(prompt: list[int], number: int) -> int:
            ids = grpcclient.InferInput("input_ids", [len(prompt)], "INT32")
            ids.set_data_from_numpy(np.array(prompt, np.int32))
            limit = grpcclient.InferInput("max_tokens", [1], "INT32")
            limit.set_data_from_numpy(np.array([number], np.int32))
            return len(client.infer("plain", [ids, limit]).as_numpy("output_ids"))

        start = time.perf_counter()
        total = sum(self._pool.map(one, prompts, num_tokens))
        return time.perf_counter() - start, total

    def close(self) -> None:
        self._pool.shutdown()
        self._server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _precision_line(log: Path) -> str:
    """What our model says of itself in Triton's log."""
    import re

    names = "graph|compute_precision|kv_cache_precision"
    return precision_of(dict(re.findall(rf"\b({names}) (\S+?),", log.read_text("utf-8", "replace"))))


def peer_command(name: str, python: str, model: Path, threads: int, *more: str) -> list[str]:
    """The command line of a peer in peers/."""
    return [python, str(PEERS / f"{name}_peer.py"), str(model), str(threads), *more]


def own_python() -> str:
    return sys.executable
