"""A small streaming client of any Triton LLM model with the vLLM backend's tensor names: text in, text deltas out.

It speaks gRPC's ModelStreamInfer directly, one call a request, so that many threads can share one channel and
closing the iterator cancels the request on the server.

    with StreamClient("localhost:8001", "smollm2") as client:
        for chunk in client.stream("Once upon a time", {"max_tokens": 32}):
            print(chunk.text, end="")
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from trtdecode.errors import ServerError, status_of_text

#: struct formats of the fixed-size Triton data types that our outputs use.
_SCALAR_FORMATS = {"BOOL": "?", "INT32": "i", "UINT32": "I", "INT64": "q", "UINT64": "Q", "FP32": "f", "FP64": "d"}


class StreamError(ServerError):
    """The server ended a request with an error, or cannot be reached; the text is the server's own.

    Args:
        code: gRPC status name ("UNAVAILABLE", ...); for an error inside a stream, what its text says.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Chunk:
    """One response of a stream."""

    text: str  # new text since the previous chunk
    finish_reason: str | None  # set on the last chunk: "stop", "length", ...
    num_output_tokens: int  # new tokens since the previous chunk; 0 when the model does not say
    num_input_tokens: int  # 0 when the model does not say
    received_at: float  # seconds on time.perf_counter()
    outputs: Mapping[str, list[Any]]  # every output tensor, flattened


class StreamClient:
    """One model on one server.

    Args:
        address: host:port of Triton's gRPC end point.
        model: name of the model.
        version: of the model; "" is the newest loaded one.
    """

    def __init__(self, address: str, model: str, version: str = "") -> None:
        import grpc
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        self.address = address
        self.model = model
        self.version = version
        self._grpc, self._messages = grpc, service_pb2
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(address, options=unlimited)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._known_batch_shape: list[int] | None = None  # after the first look at the model's config

    def __enter__(self) -> StreamClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channel; running streams are cancelled."""
        self._channel.close()

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: Mapping[str, Any] | None = None,
        *,
        stream: bool = True,
        inputs: Mapping[str, bool | int | float | str] | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> Generator[Chunk, None, None]:
        """Sends one request and yields its chunks as they arrive. Closing the iterator cancels the request.

        Args:
            prompt: text (`text_input`), or token ids (`input_ids`, which only trtdecode's models take).
            sampling: `sampling_parameters`, sent as JSON.
            stream: False asks for one response.
            inputs: more input tensors by name (int is INT32, float is FP32); they replace those that are always sent.
            timeout_s: gRPC deadline of the whole call.

        Raises:
            StreamError: the server refused or ended the request, or cannot be reached.
        """
        request = self.request(prompt, sampling, stream=stream, inputs=inputs, request_id=request_id)
        call = self._stub.ModelStreamInfer(iter([request]), timeout=timeout_s)
        refusal = ""
        try:
            for response in call:
                if response.error_message:
                    refusal = response.error_message
                    continue  # the stream ends by itself
                yield _chunk_of(response.infer_response)
            if refusal:
                raise StreamError(refusal, status_of_text(refusal).grpc_code)
        except self._grpc.RpcError as error:
            raise self._stream_error(error) from error
        finally:
            call.cancel()  # a no-op when the stream has ended

    def request(
        self,
        prompt: str | Sequence[int],
        sampling: Mapping[str, Any] | None = None,
        *,
        stream: bool = True,
        inputs: Mapping[str, bool | int | float | str] | None = None,
        request_id: str = "",
    ) -> Any:
        """The ModelInferRequest that `stream` sends; see there for arguments and errors."""
        tensors: dict[str, bool | int | float | str | Sequence[int]] = {
            ("text_input" if isinstance(prompt, str) else "input_ids"): prompt,
            "stream": stream,
            "sampling_parameters": json.dumps(dict(sampling or {})),
            "exclude_input_in_output": True,
            "return_finish_reason": True,
            "return_num_output_tokens": True,
            "return_num_input_tokens": True,
            **(inputs or {}),
        }
        return self._messages.ModelInferRequest(
            model_name=self.model,
            model_version=self.version,
            id=request_id,
            inputs=[self._tensor(name, value) for name, value in tensors.items()],
        )

    def is_ready(self, timeout_s: float = 5.0) -> bool:
        """Whether the server is up and the model is loaded."""
        request = self._messages.ModelReadyRequest(name=self.model, version=self.version)
        try:
            return bool(self._stub.ModelReady(request, timeout=timeout_s).ready)
        except self._grpc.RpcError:
            return False

    def _tensor(self, name: str, value: bool | int | float | str | Sequence[int]) -> Any:
        contents = self._messages.InferTensorContents()
        size = 1
        if isinstance(value, bool):
            datatype = "BOOL"
            contents.bool_contents.append(value)
        elif isinstance(value, int):
            datatype = "INT32"
            contents.int_contents.append(value)
        elif isinstance(value, float):
            datatype = "FP32"
            contents.fp32_contents.append(value)
        elif isinstance(value, str):
            datatype = "BYTES"
            contents.bytes_contents.append(value.encode())
        else:
            datatype, size = "INT32", len(value)
            contents.int_contents.extend(value)
        return self._messages.ModelInferRequest.InferInputTensor(
            name=name, datatype=datatype, shape=[*self._batch_shape(), size], contents=contents
        )

    def _batch_shape(self) -> list[int]:
        """What comes before a tensor's own shape: [1] for a model that batches (Triton's max_batch_size >= 1)."""
        if self._known_batch_shape is None:
            request = self._messages.ModelConfigRequest(name=self.model, version=self.version)
            try:
                config = self._stub.ModelConfig(request, timeout=10).config
            except self._grpc.RpcError as error:
                raise self._stream_error(error) from error
            self._known_batch_shape = [1] if config.max_batch_size >= 1 else []
        return self._known_batch_shape

    def _stream_error(self, error: Any) -> StreamError:
        code, details = error.code().name, error.details() or ""
        if code == "UNAVAILABLE" and "connect" in details.lower():
            return StreamError(f"no Triton gRPC end point at {self.address}; start one with `trtdecode serve`", code)
        return StreamError(details, code)


def _chunk_of(response: Any) -> Chunk:
    received_at = time.perf_counter()
    outputs = {
        tensor.name: _decode(tensor.datatype, raw)
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }

    def first(name: str, default: Any) -> Any:
        values = outputs.get(name)
        return values[0] if values else default

    reason = first("finish_reason", b"").decode()
    return Chunk(
        text=first("text_output", b"").decode(),
        finish_reason=None if reason in ("", "None") else reason,  # "None" is vLLM's word for not yet
        num_output_tokens=first("num_output_tokens", 0),
        num_input_tokens=first("num_input_tokens", 0),
        received_at=received_at,
        outputs=outputs,
    )


def _decode(datatype: str, raw: bytes) -> list[Any]:
    """Triton's wire form of a tensor: little-endian scalars, or strings with a 4-byte length before each."""
    if datatype != "BYTES":
        code = _SCALAR_FORMATS[datatype]
        return [value for (value,) in struct.iter_unpack(f"<{code}", raw)]
    values, offset = [], 0
    while offset < len(raw):
        (length,) = struct.unpack_from("<I", raw, offset)
        values.append(raw[offset + 4 : offset + 4 + length])
        offset += 4 + length
    return values


@dataclass(slots=True)
class StreamStats:
    """Times of one stream, in seconds on time.perf_counter(). Feed it the chunks as they arrive."""

    started_at: float
    first_at: float | None = None
    last_at: float | None = None
    num_output_tokens: int = 0
    num_first_tokens: int = 0  # tokens of the chunk that came first

    def add(self, chunk: Chunk) -> None:
        if chunk.num_output_tokens == 0:
            return
        if self.first_at is None:
            self.first_at = chunk.received_at
            self.num_first_tokens = chunk.num_output_tokens
        self.last_at = chunk.received_at
        self.num_output_tokens += chunk.num_output_tokens

    @property
    def ttft_ms(self) -> float:
        """Time to the first token, in milliseconds; 0 when none came."""
        return 0.0 if self.first_at is None else 1000 * (self.first_at - self.started_at)

    @property
    def itl_ms(self) -> float:
        """Mean time between tokens after the first chunk, in milliseconds; 0 with fewer than two chunks."""
        later = self.num_output_tokens - self.num_first_tokens
        if self.first_at is None or self.last_at is None or later == 0:
            return 0.0
        return 1000 * (self.last_at - self.first_at) / later

    @property
    def tokens_per_s(self) -> float:
        """Output tokens over the whole time of the request, the first token's included."""
        if self.last_at is None or self.last_at == self.started_at:
            return 0.0
        return self.num_output_tokens / (self.last_at - self.started_at)
