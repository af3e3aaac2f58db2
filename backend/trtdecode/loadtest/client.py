"""A token-level client over gRPC streaming, for any Triton model with the vLLM backend's tensor names.

perf_analyzer counts responses; this counts tokens, where the model can tell (`return_num_output_tokens`), and sees each
one's time. Where it cannot, chunks stand in and the record says so.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from trtdecode.errors import ConfigError, status_of_text
from trtdecode.loadtest.records import Record
from trtdecode.loadtest.traffic import Shot

REQUIRED_INPUTS = ("text_input", "stream")


class LoadClient:
    """Sends shots to one model. Use as an async context manager."""

    def __init__(self, url: str, model: str, *, timeout: float, ignore_eos: bool = True) -> None:
        self._client = grpcclient.InferenceServerClient(url)
        self._model = model
        self._timeout = timeout
        self._ignore_eos = ignore_eos
        self._rank = 1
        self._counts_tokens = False

    async def __aenter__(self) -> LoadClient:
        """Reads the model's tensors.

        Raises:
            ConfigError: no such model, or it lacks the vLLM backend's inputs.
        """
        try:
            metadata = await self._client.get_model_metadata(self._model, as_json=True)
        except InferenceServerException as error:
            raise ConfigError(f"model {self._model!r}: {error}; is the server up and the model loaded?") from error
        shapes = {tensor["name"]: tensor.get("shape", []) for tensor in metadata["inputs"]}
        missing = [name for name in REQUIRED_INPUTS if name not in shapes]
        if missing:
            raise ConfigError(f"model {self._model!r} has no input {', '.join(missing)}; it has {', '.join(shapes)}")
        self._rank = len(shapes["text_input"])
        outputs = {tensor["name"] for tensor in metadata["outputs"]}
        self._counts_tokens = "return_num_output_tokens" in shapes and "num_output_tokens" in outputs
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def send(self, shot: Shot, prompt: str) -> Record:
        """Sends one request and reads it to its end, its cancellation or the timeout. Errors become records."""
        record = Record(sent_at=time.monotonic(), tokens_counted=self._counts_tokens)
        responses: Any = self._client.stream_infer(self._one(self._request(shot, prompt)))
        limit = self._timeout if shot.cancel_after is None else shot.cancel_after
        try:
            await asyncio.wait_for(self._read(responses, record), limit)
        except TimeoutError:
            responses.cancel()
            if shot.cancel_after is None:
                record.error = f"no end within {limit:g} s"
            else:
                record.cancelled = True
        except (InferenceServerException, grpc.aio.AioRpcError) as error:
            record.error = _kind(error)
        record.ended_at = time.monotonic()
        if record.ok and not record.chunk_times and not record.num_tokens:
            record.error = "no response"
        return record

    async def _read(self, responses: Any, record: Record) -> None:
        async for result, error in responses:
            if error is not None:
                record.error = _kind(error)
                continue
            text = result.as_numpy("text_output")
            piece = b"" if text is None or not text.size else text.reshape(-1)[0]
            count = result.as_numpy("num_output_tokens") if self._counts_tokens else None
            num_tokens = int(count.reshape(-1)[0]) if count is not None and count.size else 0
            if not self._counts_tokens:
                num_tokens = 1 if piece else 0
            if piece or num_tokens:
                record.chunk_times.append(time.monotonic())
                record.text += piece.decode("utf-8", "replace")
                record.num_tokens += num_tokens

    def _request(self, shot: Shot, prompt: str) -> dict[str, Any]:
        sampling = {"max_tokens": shot.max_tokens, "temperature": 0.0, "ignore_eos": self._ignore_eos}
        inputs = [
            self._tensor("text_input", "BYTES", prompt.encode()),
            self._tensor("stream", "BOOL", True),
            self._tensor("sampling_parameters", "BYTES", json.dumps(sampling).encode()),
        ]
        if self._counts_tokens:
            inputs.append(self._tensor("return_num_output_tokens", "BOOL", True))
        return {"model_name": self._model, "inputs": inputs}

    def _tensor(self, name: str, datatype: str, value: bytes | bool) -> Any:
        tensor = grpcclient.InferInput(name, [1] * self._rank, datatype)
        dtype: Any = np.object_ if datatype == "BYTES" else np.bool_
        tensor.set_data_from_numpy(np.array([value], dtype=dtype).reshape([1] * self._rank))
        return tensor

    async def _one(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield request


def _kind(error: InferenceServerException | grpc.aio.AioRpcError) -> str:
    """A short name to count errors by: the status and the first words of the message."""
    if isinstance(error, InferenceServerException):
        text = str(error.message())
        status = error.status() or status_of_text(text).grpc_code
    else:
        status, text = error.code().name, error.details() or ""
    return f"{status.removeprefix('StatusCode.')}: {text[:60]}"
