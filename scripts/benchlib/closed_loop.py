"""A closed loop of HTTP requests that costs little: it shares the machine with the server it measures.

One thread and plain sockets, about 50 us a request; Triton's own clients take some 400.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_TIMEOUT_S = 30.0


@dataclass
class LoopResult:
    """What one run saw."""

    seconds: float
    latencies: list[float] = field(default_factory=list)  # seconds, one an answer

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds


def infer_request(host: str, model: str, text: str) -> bytes:
    """A whole HTTP request for one text; the vector comes back in binary."""
    body = json.dumps(
        {
            "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [text]}],
            "outputs": [{"name": "embedding", "parameters": {"binary_data": True}}],
        }
    ).encode()
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection:
    """One keep-alive connection with at most one request on it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, _TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._begin = 0.0

    def send(self, request: bytes) -> None:
        self._received = b""
        self._begin = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> float | None:
        """Latency in seconds once the answer is complete, else None. Raises RuntimeError for anything but a 200."""
        part = self.socket.recv(65_536)
        if not part:
            raise RuntimeError("the server closed the connection")
        self._received += part
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return None
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        if len(body) < length:
            return None
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"the server answered {head[:60]!r} {body[:300]!r}")
        return time.perf_counter() - self._begin


def run_closed_loop(
    address: tuple[str, int], requests: Sequence[bytes], concurrency: int, seconds: float
) -> LoopResult:
    """Keeps `concurrency` requests in flight for `seconds`, then waits for the last of them."""
    connections = [Connection(address) for _ in range(concurrency)]
    selector = selectors.DefaultSelector()
    latencies: list[float] = []
    begin = time.perf_counter()
    end = begin + seconds
    for number, connection in enumerate(connections):
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send(requests[number % len(requests)])
    num_sent = num_open = concurrency
    while num_open:
        for key, _ in selector.select(_TIMEOUT_S) or _silent():
            latency = key.data.receive()
            if latency is None:
                continue
            latencies.append(latency)
            if time.perf_counter() < end:
                key.data.send(requests[num_sent % len(requests)])
                num_sent += 1
            else:
                num_open -= 1
    result = LoopResult(time.perf_counter() - begin, latencies)
    for connection in connections:
        connection.socket.close()
    return result


def _silent() -> list[tuple[selectors.SelectorKey, int]]:
    raise RuntimeError(f"no answer within {_TIMEOUT_S:g} s")
