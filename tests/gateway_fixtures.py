"""A gateway in front of a real tritonserver with SmolLM2 and the chain model."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
from triton_fixtures import CHAIN_CONFIGS, RunningServer

KEY = "a-key-for-tests-only-0123456789"


@pytest.fixture(scope="session")
def gateway_server(
    make_server: Callable[..., RunningServer],
    make_repository: Callable[..., Path],
    smollm2_version: Path,
    endless_version: Path,
) -> Iterator[RunningServer]:
    """tritonserver with `smollm2`, `chain` and `chain_small` (one runs, two wait)."""
    configs = {name: CHAIN_CONFIGS[name] for name in ("chain", "chain_small")}
    repository = make_repository(configs, chain_small=endless_version)
    shutil.copytree(smollm2_version, repository / "smollm2" / "1")
    (repository / "smollm2" / "config.pbtxt").write_text(
        'backend: "trtdecode"\nparameters { key: "kv_cache_bytes" value { string_value: "256MiB" } }\n'
    )
    with make_server(repository) as server:
        yield server


@dataclass
class Gateway:
    """A running gateway and a client for it."""

    url: str
    server: RunningServer
    client: httpx.Client


@pytest.fixture(scope="session")
def run_gateway() -> Iterator[Callable[..., Gateway]]:
    """Starts gateways in front of the given server, with the given settings; all end with the session."""
    import uvicorn
    from trtdecode.gateway.app import create_app
    from trtdecode.gateway.settings import GatewaySettings

    running: list[tuple[uvicorn.Server, threading.Thread, httpx.Client]] = []

    def start(triton: RunningServer, **settings: object) -> Gateway:
        settings.setdefault("triton_urls", (triton.grpc_address,))
        settings.setdefault("metrics_urls", (f"http://{triton.metrics_address}/metrics",))
        settings.setdefault("model_repository", triton.repository)
        app = create_app(GatewaySettings(**settings))  # type: ignore[arg-type]
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        deadline = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < deadline, "the gateway did not start"
            time.sleep(0.02)
        client = httpx.Client(base_url=url, timeout=120)
        running.append((server, thread, client))
        return Gateway(url, triton, client)

    yield start
    for server, thread, client in running:
        client.close()
        server.should_exit = True
        thread.join(15)


@pytest.fixture(scope="session")
def start_gateway(run_gateway: Callable[..., Gateway], gateway_server: RunningServer) -> Callable[..., Gateway]:
    """Starts gateways in front of `gateway_server`."""
    return partial(run_gateway, gateway_server)


@pytest.fixture(scope="session")
def gateway(start_gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway with default settings."""
    return start_gateway()
