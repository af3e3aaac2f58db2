"""Sends generated requests to a real tritonserver and the gateway, with a healthy request running beside them.

    scripts/fuzz --minutes 10        new requests until the time is over
    scripts/fuzz --requests 5000     so many

What must hold: no 5xx but those in DOCUMENTED, an answer to everything within the time limit, the healthy request's
text right all the time, no failed step, and everything back where it was. A failing request is shrunk by hypothesis
and printed. Exit status: 0 all well, 1 a fault, 2 the server crashed (its version is named).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from chain_model import cycle_text
from fuzz_requests import GENERATE, Shot, shots
from hypothesis import HealthCheck, Phase, given, seed, settings
from levels import MIB, differences
from watched_server import MODEL, ServerCrashed, WatchedServer

#: Triton's own answers that are 5xx although the request was wrong: its JSON parser's, and /infer on a streaming model.
DOCUMENTED = (
    b"failed to parse",
    b"Unable to parse",
    b"attempt to ",  # ... access JSON non-string as string, get members for non-object
    b"was not found in the JSON",
    b"decoupled",
)
PARAMETERS = {"kv_cache_bytes": "8MiB", "max_context_len": "1024", "num_threads": "1", "max_num_seqs": "16"}
_TIMEOUT_S = 30.0
_NUM_HEALTHY_TOKENS = 100


class Fault(AssertionError):
    """What a request did that must not happen."""


class Target:
    """Both servers, and what their answers were."""

    def __init__(self, watched: WatchedServer, gateway_port: int) -> None:
        self._watched = watched
        self._ports = {"triton": watched.server.ports.http, "gateway": gateway_port}
        self.answers: Counter[str] = Counter()

    def send(self, shot: Shot) -> None:
        """Raises Fault, or ServerCrashed."""
        try:
            if shot.where == "socket":
                self._send_bytes(shot.body)
            else:
                self._send_http(shot)
        except TimeoutError as error:
            self._watched.check_alive()
            raise Fault(f"no answer within {_TIMEOUT_S:g} s: {shot}") from error
        except (OSError, http.client.HTTPException) as error:
            self._watched.check_alive()
            raise Fault(f"{error!r} from {shot}") from error

    def _send_http(self, shot: Shot) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._ports[shot.where], timeout=_TIMEOUT_S)
        try:
            connection.request(shot.method, shot.path, shot.body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        self.answers[f"{shot.where} {answer.status}"] += 1
        if answer.status >= 500 and not (shot.where == "triton" and any(text in body for text in DOCUMENTED)):
            raise Fault(f"{answer.status} {body[:500]!r} from {shot}")

    def _send_bytes(self, data: bytes) -> None:
        connection = socket.create_connection(("127.0.0.1", self._ports["triton"]), timeout=_TIMEOUT_S)
        with connection, contextlib.suppress(OSError):  # closed at once, or silent
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(0.3)  # it may rightly wait for the rest of what was announced
            connection.recv(65536)
        self.answers["socket"] += 1


class Healthy(threading.Thread):
    """One ordinary stream after the other; any that is not right is a fault."""

    def __init__(self, watched: WatchedServer) -> None:
        super().__init__(daemon=True)
        self._watched = watched
        self._stop_now = threading.Event()
        self.num_right = 0
        self.faults: list[str] = []

    def run(self) -> None:
        body = {"text_input": "x", "max_tokens": _NUM_HEALTHY_TOKENS, "temperature": 0.0, "stream": True}
        while not self._stop_now.is_set():
            try:
                events = self._watched.client.generate_stream(MODEL, body, _TIMEOUT_S)
                text = "".join(event["text_output"] for event in events)
            except Exception as error:
                self.faults.append(repr(error))
                return
            if text != cycle_text(_NUM_HEALTHY_TOKENS):
                self.faults.append(f"got {text!r}")
                return
            self.num_right += 1

    def end(self) -> None:
        self._stop_now.set()
        self.join(_TIMEOUT_S + 5)


@contextlib.contextmanager
def gateway(watched: WatchedServer) -> Iterator[int]:
    """The gateway in front of the server; its port."""
    import uvicorn
    from trtdecode.gateway.app import create_app
    from trtdecode.gateway.settings import GatewaySettings

    settings = GatewaySettings(
        triton_urls=(watched.server.grpc_address,),
        metrics_urls=(f"http://{watched.server.metrics_address}/metrics",),
        model_repository=watched.server.repository,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(settings), log_level="error", access_log=False, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield int(listener.getsockname()[1])
    server.should_exit = True
    thread.join(15)


def fuzz(target: Target, count: int, number: int) -> None:
    """`count` requests of seed `number`; raises what `Target.send` raises, with the smallest request that does."""

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(shots())
    def send(shot: Shot) -> None:
        target.send(shot)

    send()


def warm_up(target: Target) -> None:
    """Lets pools and caches grow to their size before the levels are taken."""
    for _ in range(30):
        for path in GENERATE:
            target.send(Shot("triton", path, b'{"text_input": "x", "max_tokens": 60, "n": 3, "stream": false}'))


def run(requests: int, minutes: float, number: int, max_growth: int) -> list[str]:
    """One run; the faults found, described."""
    faults: list[str] = []
    with WatchedServer(PARAMETERS) as watched, gateway(watched) as port:
        target, healthy = Target(watched, port), Healthy(watched)
        warm_up(target)
        fuzz(target, 50, number + 1_000_000)
        watched.settle()
        before = watched.levels(0)
        healthy.start()
        begin = time.monotonic()
        try:
            while True:
                fuzz(target, requests if not minutes else 500, number)
                number += 1
                if not minutes or time.monotonic() - begin > minutes * 60:
                    break
        except Fault as fault:
            faults.append(str(fault))
        healthy.end()
        watched.settle()
        after = watched.levels(sum(target.answers.values()))
        faults += [f"the healthy request: {text}" for text in healthy.faults]
        faults += differences(before, after, max_growth)
        names = ("trtdecode_step_failures_total", "trtdecode_recoveries_total")
        faults += [f"{name} is {watched.metric(name):g}" for name in names if watched.metric(name)]
        print(f"tritonserver {watched.version}, {time.monotonic() - begin:.0f} s, seed {number}")
        print("  " + before.row() + "\n  " + after.row())
        print("  " + ", ".join(f"{name}: {count}" for name, count in sorted(target.answers.items())))
        print(f"  {healthy.num_right} healthy requests of {_NUM_HEALTHY_TOKENS} tokens were right beside them")
    return faults


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=0.0, help="instead of a number of requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-growth", type=float, default=24, metavar="MIB", help="of any process, while it runs")
    arguments: Any = parser.parse_args(argv)
    try:
        faults = run(arguments.requests, arguments.minutes, arguments.seed, int(arguments.max_growth * MIB))
    except ServerCrashed as crash:
        print(f"CRASH: {crash}")
        return 2
    for fault in faults:
        print(f"FAULT: {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
