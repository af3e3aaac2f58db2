"""A trace id on its way: HTTP request -> gateway -> Triton's OpenTelemetry exporter, and our backend."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_fixtures import Gateway
from triton_fixtures import RunningServer, wait_for

pytestmark = pytest.mark.triton_server

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{SPAN}-01", "x-request-id": "mine-1"}


class Collector:
    """An OTLP/HTTP receiver: what an OpenTelemetry collector gets."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        spans = self.spans

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                for resource in body["resourceSpans"]:
                    for scope in resource["scopeSpans"]:
                        spans.extend(scope["spans"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def gateway(
    make_server: Callable[..., RunningServer],
    make_repository: Callable[..., Path],
    run_gateway: Callable[..., Gateway],
    collector: Collector,
    endless_version: Path,
) -> Iterator[Gateway]:
    settings = ("mode=opentelemetry", f"opentelemetry,url={collector.url}", "rate=1", "level=TIMESTAMPS", "count=-1")
    tracing = [f"--trace-config={setting}" for setting in settings]
    with make_server(make_repository({"chain": ""}, endless_version), extra_arguments=tracing) as server:
        yield run_gateway(server)


def test_triton_exports_its_spans_under_the_callers_trace(gateway: Gateway, collector: Collector) -> None:
    """Triton 2.51 starts a trace of its own for one streamed request in twenty, most often a server's first."""
    body = {"model": "chain", "prompt": "x", "max_tokens": 3, "temperature": 0}
    for _ in range(10):
        assert gateway.client.post("/v1/completions", json=body, headers=HEADERS).status_code == 200

    def ours() -> list[dict[str, Any]]:
        return [span for span in collector.spans if span["traceId"] == TRACE]

    wait_for(lambda: any(span.get("parentSpanId") == SPAN for span in ours()), 30, "the spans")
    assert "chain" in json.dumps(ours())


def test_the_backend_knows_request_and_trace_of_a_running_sequence(gateway: Gateway) -> None:
    body = {"model": "chain", "prompt": "x", "max_tokens": 100_000, "stream": True, "temperature": 0}
    with gateway.client.stream("POST", "/v1/completions", json=body, headers=HEADERS) as response:
        lines = response.iter_lines()
        next(lines)  # the iterator is kept: httpx ends the stream with it
        control, found = gateway.server.control("chain"), []
        wait_for(lambda: found.extend(control.ask("inspect")["sequences"]) or found, what="the sequence in the map")
        ((number, caller, trace, num_tokens),) = found
    assert (caller, trace) == ("mine-1", TRACE)
    assert number > 0 and num_tokens > 1


def test_a_traceparent_that_is_none_is_no_reason_to_refuse(gateway: Gateway) -> None:
    body = {"model": "chain", "prompt": "x", "max_tokens": 1}
    answer = gateway.client.post("/v1/completions", json=body, headers={"traceparent": "nonsense"})
    assert answer.status_code == 200
