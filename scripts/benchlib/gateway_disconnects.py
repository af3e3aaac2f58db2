"""How long a request outlives its client: from closing the socket until the stub has let go of it.

Watched through the stub's control socket, whose `live` counts requests without a final response: the time includes
the gateway's notice, the cancellation's way through Triton, and the end of the step that runs at that moment.
"""

from __future__ import annotations

import json
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from gateway_process import GREEDY, IDLE, MEASURED, GatewayProcess, control_of
from trtdecode.server.control import ControlSocket
from trtdecode.server.launch import TritonServer

GONE_TIMEOUT_S = 60.0
NUM_OTHERS = 32


@dataclass(frozen=True, slots=True)
class Case:
    """A client that leaves. Without max_tokens and end token its answer would run to the end of the context."""

    model: str
    stream: bool
    num_others: int = 0  # streams that run meanwhile
    prompt: str = "once upon a time"


CASES = {
    "streamed, idle model": Case(IDLE, stream=True),
    "not streamed, idle model": Case(IDLE, stream=False),
    "streamed": Case(MEASURED, stream=True),
    "not streamed": Case(MEASURED, stream=False),
    "streamed, 32 others run": Case(MEASURED, stream=True, num_others=NUM_OTHERS),
    "not streamed, 32 others run": Case(MEASURED, stream=False, num_others=NUM_OTHERS),
    "not streamed, in the prefill of 1,500 tokens": Case(MEASURED, stream=False, prompt="a b " * 750),
}


def measure_disconnects(server: TritonServer, gateway: GatewayProcess, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds by case: median, p95 (nearest rank), maximum, of `repeats` disconnects each.

    Raises:
        RuntimeError: a request outlived its client, or ended by itself.
    """
    rows = {}
    for name, case in CASES.items():
        control = control_of(server, case.model)
        before = _cancelled(server, case.model)
        others = [_open(gateway, replace(case, stream=True), number) for number in range(case.num_others)]
        _wait_for_live(control, len(others))
        times = [1000 * _disconnect(gateway, control, case, number) for number in range(repeats)]
        for connection in others:
            connection.close()
        _wait_for_live(control, 0)
        cancelled = partial(_cancelled, server, case.model)
        _wait(cancelled, before + repeats + len(others), "requests were cancelled in all")
        times.sort()
        rows[name] = {
            "median_ms": statistics.median(times),
            "p95_ms": times[-(-95 * len(times) // 100) - 1],
            "max_ms": times[-1],
            "repeats": len(times),
        }
    return rows


def _open(gateway: GatewayProcess, case: Case, number: int) -> socket.socket:
    fields = {"model": case.model, "prompt": f"{number} {case.prompt}", "stream": case.stream, **GREEDY}
    body = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection = socket.create_connection(("127.0.0.1", gateway.port), 60)
    connection.sendall(f"{head}\r\n\r\n".encode() + body)
    return connection


def _disconnect(gateway: GatewayProcess, control: ControlSocket, case: Case, number: int) -> float:
    """Seconds from close() until one request less is live."""
    connection = _open(gateway, case, number)
    received = b""
    while case.stream and b"data: {" not in received:
        received += connection.recv(4096)
    _wait_for_live(control, case.num_others + 1)
    time.sleep(0.05)  # it computes, and is not only taken in
    closed = time.perf_counter()
    connection.close()
    _wait_for_live(control, case.num_others)
    return time.perf_counter() - closed


def _wait_for_live(control: ControlSocket, number: int) -> None:
    _wait(lambda: control.ask("status")["live"], number, "requests are live")


def _cancelled(server: TritonServer, model: str) -> int:
    """Requests of a model that ended as cancelled, by the server's own metrics."""
    name = "trtdecode_requests_finished_total{"
    lines = [line for line in server.client.metrics().splitlines() if line.startswith(name) and "cancelled" in line]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if f'model="{model}"' in line)


def _wait(read: Callable[[], int], wanted: int, what: str) -> None:
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while (found := read()) != wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{found} {what} after {GONE_TIMEOUT_S:g} s; {wanted} were expected")
        time.sleep(0.002)


def disconnect_table(rows: dict[str, dict[str, float]]) -> str:
    """Markdown: one line a case."""
    lines = ["| the client's request | median ms | p95 ms | max ms | n |", "|---|---|---|---|---|"]
    for case, row in rows.items():
        figures = " | ".join(f"{row[name]:.0f}" for name in ("median_ms", "p95_ms", "max_ms", "repeats"))
        lines.append(f"| {case} | {figures} |")
    return "\n".join(lines)
