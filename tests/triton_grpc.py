"""The real tritonclient over gRPC, wrapped for tests: one bidirectional stream, answers sorted by request."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

_DATATYPES = {"O": "BYTES", "S": "BYTES", "U": "BYTES", "b": "BOOL"}
_NUMERIC = {"int32": "INT32", "uint64": "UINT64", "float32": "FP32", "int64": "INT64", "uint32": "UINT32"}


def tensor(name: str, value: Any, *, batched: bool = False) -> grpcclient.InferInput:
    """An input from a Python value (int -> INT32, float -> FP32, bool, text or a list of texts) or an array."""
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, bool):
        array = np.array([value])
    elif isinstance(value, int):
        array = np.array([value], np.uint64 if name == "seed" else np.int32)
    elif isinstance(value, float):
        array = np.array([value], np.float32)
    else:
        array = np.array(value if isinstance(value, list) else [value], object)
    if batched and not isinstance(value, np.ndarray):
        array = array.reshape(1, -1)
    datatype = _DATATYPES.get(array.dtype.kind) or _NUMERIC[str(array.dtype)]
    made = grpcclient.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


class Answer:
    """Everything that came back for one request id."""

    def __init__(self) -> None:
        self.responses: list[Any] = []
        self.errors: list[str] = []
        self.num_final = 0
        self.times: list[float] = []
        self.done = threading.Event()

    def output(self, name: str) -> list[Any]:
        """All values of one output over all responses, in order; bytes as text."""
        values: list[Any] = []
        for response in self.responses:
            array = response.as_numpy(name)
            if array is not None:
                values += [v.decode() if isinstance(v, bytes) else v for v in array.reshape(-1).tolist()]
        return values

    @property
    def text(self) -> str:
        return "".join(self.output("text_output"))

    def wait(self, timeout_s: float = 30.0) -> Answer:
        """Until the final response or the error."""
        assert self.done.wait(timeout_s), f"no final response within {timeout_s:g} s"
        return self


class GrpcStream:
    """One ModelStreamInfer call. Use as a context manager."""

    def __init__(self, address: str) -> None:
        self._client = grpcclient.InferenceServerClient(address)
        self._pending: dict[str, Answer] = {}
        self.is_open = False

    def __enter__(self) -> GrpcStream:
        self._client.start_stream(self._on_response)
        self.is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, *, cancel: bool = False) -> None:
        """Ends the call; with `cancel`, its requests are cancelled instead of awaited."""
        if self.is_open:
            self._client.stop_stream(cancel_requests=cancel)
            self._client.close()
            self.is_open = False

    def send(
        self, model: str, inputs: dict[str, Any], *, request_id: str = "", batched: bool = False, **options: Any
    ) -> Answer:
        """Sends one request. With several at once on one stream, give each its own `request_id`."""
        answer = Answer()
        self._pending[request_id] = answer
        tensors = [tensor(name, value, batched=batched) for name, value in inputs.items()]
        self._client.async_stream_infer(
            model, tensors, request_id=request_id, enable_empty_final_response=True, **options
        )
        return answer

    def _on_response(self, result: Any, error: Any) -> None:
        if error is not None:
            # Triton's stream errors carry no request id: they belong to the only request, or to none that is told.
            for answer in self._pending.values():
                if not answer.done.is_set():
                    answer.errors.append(str(error))
                    answer.done.set()
            return
        response = result.get_response()
        answer = self._pending[response.id]
        answer.times.append(time.monotonic())
        if response.outputs:
            answer.responses.append(result)
        if response.parameters["triton_final_response"].bool_param:
            answer.num_final += 1
            answer.done.set()


def ask(address: str, model: str, inputs: dict[str, Any], *, batched: bool = False, **options: Any) -> Answer:
    """One request on a stream of its own, to its end."""
    with GrpcStream(address) as stream:
        return stream.send(model, inputs, batched=batched, **options).wait()
