"""The soak against a real tritonserver: /generate, /generate_stream and gRPC streams, with clients that leave."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterable

import numpy as np
from levels import Levels
from traffic_mix import Job
from trtdecode.errors import ServerError
from watched_server import MODEL, ServerCrashed, WatchedServer

_CLIENTS = 12
_TIMEOUT_S = 120.0


class ServerSoak:
    """Sends jobs from several clients at once; a broken connection is a failure, not something to try again."""

    def __init__(self, watched: WatchedServer) -> None:
        self._watched = watched
        self.ends: Counter[str] = Counter()
        self.failures: list[str] = []
        self._num_sent = itertools.count()
        self._stop = threading.Event()

    def run(self, jobs: Iterable[Job]) -> None:
        """Sends all. Raises ServerCrashed as soon as a client sees it."""
        queue, lock = iter(jobs), threading.Lock()
        crashes: list[Exception] = []

        def client() -> None:
            while not self._stop.is_set():
                with lock:
                    job = next(queue, None)
                if job is None:
                    return
                try:
                    self._send(job)
                except Exception as error:
                    if not self._stop.is_set():  # after a crash nothing that follows from it matters
                        crashes.append(error)
                    self._stop.set()

        # Daemons: a client of a stub that died waits for ever, since Triton does not notice that.
        threads = [threading.Thread(target=client, daemon=True) for _ in range(_CLIENTS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and not crashes:
            threads[0].join(0.5)
            try:
                self._watched.check_alive()
            except ServerCrashed as crash:
                crashes.append(crash)
        if crashes:
            self._stop.set()
            raise crashes[0]
        self._watched.settle()

    def _send(self, job: Job) -> None:
        next(self._num_sent)
        way = {"generate": self._generate, "generate_stream": self._stream, "grpc": self._grpc}[job.way]
        try:
            end = way(job)
        except (OSError, http.client.HTTPException, ServerError) as error:
            self._watched.check_alive()
            end = f"BROKEN {type(error).__name__}"
            self.failures.append(f"{job.way}: {error!r}; the server ({self._watched.version}) is alive")
        self.ends[end] += 1
        if job.is_bad != (end == "refused") and end != "left":
            self.failures.append(f"{job.way} {job.sampling}: {end}")

    def _generate(self, job: Job) -> str:
        if job.leaves_after is not None:
            return self._leave_at_once(job)
        answer = self._watched.client.generate(MODEL, job.body(), _TIMEOUT_S)
        return self._end_of(answer.status, answer.body)

    def _leave_at_once(self, job: Job) -> str:
        connection = http.client.HTTPConnection(self._watched.server.host, self._watched.server.ports.http, timeout=60)
        connection.request("POST", f"/v2/models/{MODEL}/generate", json.dumps(job.body()).encode())
        connection.close()
        return "left"

    def _stream(self, job: Job) -> str:
        connection = http.client.HTTPConnection(
            self._watched.server.host, self._watched.server.ports.http, timeout=_TIMEOUT_S
        )
        try:
            connection.request("POST", f"/v2/models/{MODEL}/generate_stream", json.dumps(job.body()).encode())
            if job.leaves_after == 0:
                return "left"
            answer = connection.getresponse()
            if answer.status != 200:
                return self._end_of(answer.status, answer.read())
            last, num_events = b"", 0
            while line := answer.readline():
                if line.startswith(b"data:"):
                    last, num_events = line[5:], num_events + 1
                    if num_events == job.leaves_after:
                        return "left"
            return self._end_of(400 if b'"error"' in last else 200, last)
        finally:
            connection.close()

    def _grpc(self, job: Job) -> str:
        import tritonclient.grpc as triton

        client = triton.InferenceServerClient(self._watched.server.grpc_address)
        done, enough = threading.Event(), threading.Event()
        outcome: list[str] = []
        num_events = 0

        def on_response(result: triton.InferResult | None, error: Exception | None) -> None:
            nonlocal num_events
            if error is not None:
                outcome.append(self._end_of(400, str(error).encode()))
                done.set()
            elif result is not None:
                num_events += 1
                if num_events == job.leaves_after:
                    enough.set()
                    done.set()
                if result.get_response().parameters["triton_final_response"].bool_param:
                    outcome.append("answered")
                    done.set()

        inputs = []
        for name, value in job.body().items():
            kind, dtype = ("BOOL", np.bool_) if isinstance(value, bool) else ("BYTES", np.object_)
            tensor = triton.InferInput(name, [1], kind)
            tensor.set_data_from_numpy(np.array([value if isinstance(value, bool) else value.encode()], dtype))
            inputs.append(tensor)
        client.start_stream(on_response)
        client.async_stream_infer(MODEL, inputs, enable_empty_final_response=True)
        leaves = job.leaves_after == 0 or not done.wait(_TIMEOUT_S) or enough.is_set()
        client.stop_stream(cancel_requests=leaves)
        client.close()
        if job.leaves_after is None and not outcome:
            raise ServerError(f"no end within {_TIMEOUT_S:g} s")
        return "left" if leaves else outcome[0]

    @staticmethod
    def _end_of(status: int, body: bytes) -> str:
        if status == 200:
            return "answered"
        # Our refusals of a field say what they got; a `{"error": ...}` without it is something else.
        if status in (400, 422) and any(word in body for word in (b": got ", b"unknown", b"context")):
            return "refused"
        return f"HTTP {status} {body[:200].decode(errors='replace')}"

    def levels(self, num_requests: int) -> Levels:
        return self._watched.levels(num_requests)
