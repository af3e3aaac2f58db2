"""A gRPC server that speaks Triton's protocol and answers as told: for tests of clients, never of the backend."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc


class FakeModel(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers "héllo" and "🌶" as two responses, or what `behaviour` names."""

    def __init__(self) -> None:
        self.max_batch_size = 0
        self.behaviour = "answer"
        self.num_chunks = 0  # so many of 10 kB in place of the answer
        self.requests: list[Any] = []
        self.cancelled = threading.Event()

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ModelConfigResponse(config={"name": request.name, "max_batch_size": self.max_batch_size})

    def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ModelReadyResponse(ready=request.name == "tiny")

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        for request in requests:
            self.requests.append(request)
            if self.behaviour == "error":
                yield pb.ModelStreamInferResponse(error_message="max_tokens: got -1; must be at least 1")
            elif self.behaviour == "abort":
                context.abort(grpc.StatusCode.NOT_FOUND, "no model 'tiny'")
            elif self.behaviour == "endless":
                context.add_callback(self.cancelled.set)
                while context.is_active():
                    yield response("x", 1)
            elif self.num_chunks:
                yield from (response("x" * 10_000, 1) for _ in range(self.num_chunks))
            else:
                yield response("héllo ", 2)
                yield response("🌶", 3, finish_reason="stop")


def response(text: str, num_tokens: int, finish_reason: str = "None") -> Any:
    """One response as tritonserver sends it: outputs described, contents raw."""

    def raw_string(value: str) -> bytes:
        return struct.pack("<I", len(value.encode())) + value.encode()

    outputs = [
        pb.ModelInferResponse.InferOutputTensor(name=name, datatype=datatype, shape=[1])
        for name, datatype in (("text_output", "BYTES"), ("finish_reason", "BYTES"), ("num_output_tokens", "UINT32"))
    ]
    raw = [raw_string(text), raw_string(finish_reason), struct.pack("<I", num_tokens)]
    inner = pb.ModelInferResponse(model_name="tiny", outputs=outputs, raw_output_contents=raw)
    return pb.ModelStreamInferResponse(infer_response=inner)


@contextlib.contextmanager
def serving(model: FakeModel) -> Iterator[str]:
    """Serves `model` on a free port; yields its address."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(model, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
