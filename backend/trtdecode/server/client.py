"""A few HTTP calls to tritonserver with the standard library: health, index, load, unload, generate, metrics."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trtdecode.errors import ServerError


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status and body of one call."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body as JSON; raises ServerError when it is not."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ServerError(f"tritonserver answered {self.status} with a body that is not JSON: {error}") from error


class ServerClient:
    """Talks to one server. Each call opens its own connection, so that it can be used from any thread."""

    def __init__(self, host: str, http_port: int, metrics_port: int) -> None:
        self._host = host
        self.http_port = http_port
        self._metrics_port = metrics_port

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = 60.0) -> HttpAnswer:
        """One request with a JSON body. Raises OSError or http.client.HTTPException when there is no answer."""
        return self._call(self.http_port, method, path, body, timeout_s)

    def _call(self, port: int, method: str, path: str, body: Any, timeout_s: float) -> HttpAnswer:
        connection = http.client.HTTPConnection(self._host, port, timeout=timeout_s)
        try:
            payload = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return HttpAnswer(answer.status, answer.read())
        finally:
            connection.close()

    def is_ready(self) -> bool:
        """True when the server and all its models are ready."""
        try:
            return self.call("GET", "/v2/health/ready", timeout_s=2).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def index(self) -> list[dict[str, str]]:
        """The repository index: dicts with "name", "version", "state", "reason" (absent when unset)."""
        answer = self.call("POST", "/v2/repository/index", {})
        rows: list[dict[str, str]] = answer.json()
        return rows

    def ready_models(self) -> list[str]:
        """Names of models with a READY version."""
        return sorted({row["name"] for row in self.index() if row.get("state") == "READY"})

    def load(self, model: str, timeout_s: float = 300.0) -> None:
        """Loads (or reloads) a model; raises ServerError with Triton's reason."""
        self._control(model, "load", timeout_s)

    def unload(self, model: str, timeout_s: float = 60.0) -> None:
        """Starts unloading; the model's state in `index` says when it is gone."""
        self._control(model, "unload", timeout_s)

    def _control(self, model: str, action: str, timeout_s: float) -> None:
        answer = self.call("POST", f"/v2/repository/models/{model}/{action}", {}, timeout_s)
        if answer.status != 200:
            raise ServerError(f"{action} of {model} failed: {answer.json().get('error', answer.body)}")

    def generate(self, model: str, body: dict[str, Any], timeout_s: float = 60.0) -> HttpAnswer:
        """/generate: one answer."""
        return self.call("POST", f"/v2/models/{model}/generate", body, timeout_s)

    def generate_stream(self, model: str, body: dict[str, Any], timeout_s: float = 60.0) -> Iterator[dict[str, Any]]:
        """/generate_stream: one dict an event. Closing the iterator closes the connection.

        Raises:
            ServerError: the status was not 200; the text is the server's.
        """
        connection = http.client.HTTPConnection(self._host, self.http_port, timeout=timeout_s)
        try:
            payload = json.dumps(body).encode()
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"/v2/models/{model}/generate_stream", payload, headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ServerError(f"generate_stream answered {answer.status}: {answer.read().decode(errors='replace')}")
            while line := answer.readline():
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])
        finally:
            connection.close()

    def metrics(self) -> str:
        """The Prometheus text of /metrics."""
        return self._call(self._metrics_port, "GET", "/metrics", None, 10).body.decode()
