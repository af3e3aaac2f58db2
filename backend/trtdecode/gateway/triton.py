"""The only file that talks to Triton: `tritonclient.grpc.aio` streams, one for each generation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from trtdecode.gateway.encoder_bodies import EncoderRow
from trtdecode.gateway.errors import GatewayError, from_triton, invalid

UNAVAILABLE_RETRY_AFTER = 2


@dataclass(frozen=True, slots=True)
class Generation:
    """One prompt to be continued."""

    model: str
    prompt: str | list[int]
    sampling: dict[str, Any]  # the keys of `sampling_parameters`
    num_samples: int = 1
    logprobs: bool = False
    request_id: str = ""
    meaning: tuple[str, str] | None = None  # for the semantic cache: the text to compare, and what must be equal
    trace: dict[str, str] = field(default_factory=dict)  # traceparent and tracestate, passed on


@dataclass(slots=True)
class Piece:
    """What one response adds; the lists have one entry a sample."""

    texts: list[str]
    finish_reasons: list[str | None]
    num_output_tokens: list[int]
    num_input_tokens: int
    logprobs: list[list[dict[str, Any]] | None]  # vLLM's form: a list of {token id: {logprob, rank, decoded_token}}
    prompt_logprobs: list[dict[str, Any] | None] | None = None  # of the prompt, once, with the first token


class TritonConnection:
    """A channel to one server. Made on the event loop that uses it.

    Args:
        timeout: of a whole answer, in seconds.
        on_leave: called with the model when an answer is given up before its end.
    """

    def __init__(self, url: str, timeout: float, on_leave: Callable[[str], None] = lambda model: None) -> None:
        self.url = url
        self._timeout = timeout
        self._on_leave = on_leave
        self._client = grpcclient.InferenceServerClient(url)
        self._shapes: dict[str, tuple[int, list[str]]] = {}  # rank of the inputs, names of the outputs

    async def close(self) -> None:
        await self._client.close()

    async def is_ready(self) -> bool:
        """True when the server answers and is ready; never raises."""
        try:
            return bool(await asyncio.wait_for(self._client.is_server_ready(), 2))
        except (InferenceServerException, TimeoutError):
            return False

    async def models(self) -> list[str]:
        """Names of the ready models. Raises GatewayError 503 when the server is away."""
        try:
            index = await self._client.get_model_repository_index(as_json=True)
        except InferenceServerException as error:
            raise _gateway_error(error) from error
        return sorted({entry["name"] for entry in index.get("models", []) if entry.get("state") == "READY"})

    async def generate(self, generation: Generation) -> AsyncGenerator[Piece]:
        """Streams the answer. Closing the iterator early cancels the request in Triton at once; a stream that ends by
        itself, with an error too, is left to end.

        Raises:
            GatewayError: what Triton said, or 503 when it is away, or 504 after the timeout.
        """
        rank = await self._rank(generation.model, "text_output")
        responses: Any = self._client.stream_infer(
            # Triton's OpenTelemetry mode takes the trace from the metadata, our backend from the parameters.
            _once(_request(generation, rank)),
            headers=generation.trace or None,
        )
        refusal: InferenceServerException | None = None
        has_ended = False
        try:
            async with asyncio.timeout(self._timeout):
                async for result, error in responses:
                    if error is not None:
                        refusal = error
                        continue
                    piece = _piece(result, generation)
                    if piece is not None:
                        yield piece
            has_ended = True
            if refusal is not None:
                raise refusal
        except (InferenceServerException, grpc.aio.AioRpcError) as error:
            raise _of_prompt(_gateway_error(error)) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            text = "the stream to the inference server was ended on this side; retry later"
            raise GatewayError(503, text, retry_after=UNAVAILABLE_RETRY_AFTER) from None
        except TimeoutError:
            raise GatewayError(504, f"no end of the answer within {self._timeout:g} s") from None
        finally:
            responses.cancel()
            if not has_ended:
                self._on_leave(generation.model)

    async def encode(self, model: str, rows: Sequence[EncoderRow], output: str) -> tuple[list[Any], int]:
        """One row (numpy f32) of an encoder's output for each text, list of ids or pair; and the number of tokens.

        Raises:
            GatewayError: 400 for a model without that output; what Triton said of the first request that failed.
        """
        rank = await self._rank(model, output)

        async def one(row: EncoderRow) -> Any:
            tensors = [_tensor("input_ids", "INT32", row, rank)] if isinstance(row, list) else _texts(row, rank)
            wanted = [grpcclient.InferRequestedOutput(name) for name in (output, "num_input_tokens")]
            try:
                return await self._client.infer(model, tensors, outputs=wanted, client_timeout=self._timeout)
            except InferenceServerException as error:
                raise _gateway_error(error) from error

        results = await asyncio.gather(*(one(row) for row in rows))
        vectors = [result.as_numpy(output).reshape(-1) for result in results]
        return vectors, sum(int(result.as_numpy("num_input_tokens").sum()) for result in results)

    async def _rank(self, model: str, output: str) -> int:
        """Rank of the inputs: 1 for models with max_batch_size 0, 2 for the others. Raises GatewayError for a model
        that does not give `output`."""
        if model not in self._shapes:
            try:
                metadata = await self._client.get_model_metadata(model, as_json=True)
            except InferenceServerException as error:
                raise _gateway_error(error) from error
            shapes = {tensor["name"]: tensor.get("shape", []) for tensor in metadata["inputs"]}
            if "text_input" not in shapes:
                raise GatewayError(404, f"model {model!r} takes no text_input: it cannot be asked here", param="model")
            self._shapes[model] = len(shapes["text_input"]), [tensor["name"] for tensor in metadata["outputs"]]
        rank, outputs = self._shapes[model]
        if output not in outputs:
            raise invalid("model", f"model: got {model!r}, which gives {', '.join(outputs)} and no {output}")
        return rank


def _request(generation: Generation, rank: int) -> dict[str, Any]:
    if isinstance(generation.prompt, str):
        prompt = _tensor("text_input", "BYTES", [generation.prompt.encode()], rank)
    else:
        prompt = _tensor("input_ids", "INT32", generation.prompt, rank)
    sampling = {**generation.sampling, "n": generation.num_samples}
    flags = ["stream", "return_finish_reason", "return_num_input_tokens", "return_num_output_tokens"]
    flags += ["return_logprobs"] if generation.logprobs else []
    return {
        "model_name": generation.model,
        "inputs": [
            prompt,
            _tensor("sampling_parameters", "BYTES", [json.dumps(sampling).encode()], rank),
            _tensor("exclude_input_in_output", "BOOL", [True], rank),
            *(_tensor(flag, "BOOL", [True], rank) for flag in flags),
        ],
        "request_id": generation.request_id,
        "parameters": generation.trace or None,
    }


async def _once(request: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
    """The request is made before: what fails inside this generator looks like a cancellation to gRPC."""
    yield request


def _tensor(name: str, datatype: str, values: list[Any], rank: int) -> Any:
    dtypes: dict[str, Any] = {"BYTES": np.object_, "BOOL": np.bool_, "INT32": np.int32}
    shape = [len(values)] if rank == 1 else [1, len(values)]
    tensor = grpcclient.InferInput(name, shape, datatype)
    tensor.set_data_from_numpy(np.array(values, dtype=dtypes[datatype]).reshape(shape))
    return tensor


def _texts(row: str | tuple[str, str], rank: int) -> list[Any]:
    texts = (row,) if isinstance(row, str) else row
    return [
        _tensor(name, "BYTES", [text.encode()], rank)
        for name, text in zip(("text_input", "text_pair"), texts, strict=False)
    ]


def _piece(result: Any, generation: Generation) -> Piece | None:
    def values(name: str) -> list[Any]:
        array = result.as_numpy(name)
        return [] if array is None else array.reshape(-1).tolist()

    texts = [text.decode("utf-8") for text in values("text_output")]
    if not texts:
        return None  # the empty final response
    reasons = [reason.decode() for reason in values("finish_reason")]
    logprobs = [json.loads(text) for text in values("logprobs")] if generation.logprobs else [None] * len(texts)
    return Piece(
        texts=texts,
        finish_reasons=[None if reason in ("", "None") else reason for reason in reasons],
        num_output_tokens=values("num_output_tokens"),
        num_input_tokens=(values("num_input_tokens") or [0])[0],
        logprobs=logprobs,
        prompt_logprobs=next((json.loads(text) for text in values("prompt_logprobs")), None),
    )


def _of_prompt(error: GatewayError) -> GatewayError:
    """Names the body's field instead of our tensor."""
    if error.param in ("text_input", "input_ids"):
        error.param = "prompt"
    return error


def _gateway_error(error: InferenceServerException | grpc.aio.AioRpcError) -> GatewayError:
    """tritonclient wraps what a call raises, but not what iterating a stream raises."""
    if isinstance(error, InferenceServerException):
        status, text = error.status(), str(error.message())
    else:
        status, text = str(error.code()), error.details() or ""
    found = from_triton(status, text)
    if status == "StatusCode.UNAVAILABLE" and "Connection refused" in text:
        return GatewayError(503, "the inference server is away; retry later", retry_after=UNAVAILABLE_RETRY_AFTER)
    return found
