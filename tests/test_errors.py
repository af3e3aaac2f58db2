"""What an error is on the wire, and that it can be told from its text alone, as a gRPC stream needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from trtdecode.errors import (
    DeadlineExceeded,
    Draining,
    ExecutorFailed,
    InvalidRequest,
    QueueFull,
    RequestCancelled,
    RequestError,
    status_of_text,
    wire_status,
)

BACKEND = Path(__file__).resolve().parents[1] / "backend"


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("max_tokens", -1, "must be at least 1"),
        InvalidRequest("sampling_parameters", "\nqueue is full (", "must be a JSON object"),
        InvalidRequest("model is draining", 1, "is not a parameter"),
        QueueFull(4),
        Draining(),
        DeadlineExceeded(5, "waiting"),
        DeadlineExceeded(5, "running"),
        RequestCancelled(),
        RequestCancelled("ended because its receiver failed"),
        RequestCancelled("cancelled because the model is draining"),
        ExecutorFailed("executor openvino raised ValueError('x: got 1')"),
        ExecutorFailed("sampler raised RuntimeError('queue is full (')"),
        ExecutorFailed("internal error in the loop: KeyError(3)"),
        ExecutorFailed("text output failed: OSError()"),
        ExecutorFailed("anything else"),
    ],
    ids=str,
)
def test_a_text_tells_its_status(error: RequestError) -> None:
    assert status_of_text(str(error)) == wire_status(error)


@pytest.mark.parametrize(
    ("text", "code", "http"),
    [
        ("Request for unknown model: 'x' is not found", "NOT_FOUND", 404),
        ("[request id: <id_unknown>] Exceeds maximum queue size", "UNAVAILABLE", 503),
        ("Request timeout expired", "UNAVAILABLE", 504),
        ("[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'chain'", "INVALID_ARGUMENT", 400),
        ("[request id: 7] unexpected inference input 'colour' for model 'chain'", "INVALID_ARGUMENT", 400),
        ("[request id: 7] unexpected shape for input 'text_input' for model 'chain'", "INVALID_ARGUMENT", 400),
        (
            "[request id: 7] inference input 'seed' data-type is 'INT32', model 'x' expects 'UINT64'",
            "INVALID_ARGUMENT",
            400,
        ),
        ("something new", "INTERNAL", 500),
    ],
)
def test_tritons_own_texts(text: str, code: str, http: int) -> None:
    status = status_of_text(text)
    assert (status.grpc_code, status.http_status) == (code, http)


def test_nobody_asks_for_tritons_strict_mode() -> None:
    """`triton_grpc_error` crashes tritonserver 2.51 in ModelStreamInferHandler, once in some ten thousand refusals."""
    users = [path for path in BACKEND.rglob("*.py") if '"triton_grpc_error"' in path.read_text("utf-8")]
    assert users == []
