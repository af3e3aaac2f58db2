"""End points of encoders: OpenAI's /v1/embeddings, and /v1/rerank in the form that Jina, Cohere and vLLM share.

Each text is a request of its own to Triton, whose batcher puts it together with whatever else arrives.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from trtdecode.gateway.errors import GatewayError, invalid
from trtdecode.gateway.schemas import Body, Strict
from trtdecode.gateway.service import Service
from trtdecode.gateway.streaming import until_disconnect
from trtdecode.gateway.triton import EncoderRow

MAX_TEXTS = 2048  # OpenAI's limit

_Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


class EmbeddingRequest(Body):
    """OpenAI's body; ids are those of the served model's tokenizer, special ones included."""

    model: str
    input: (
        str
        | _Ids
        | Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS)]
        | Annotated[list[_Ids], Field(min_length=1, max_length=MAX_TEXTS)]
    )
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None

    @property
    def rows(self) -> list[EncoderRow]:
        """The texts or lists of ids."""
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [self.input]
        return list(self.input)


class Document(Strict):
    text: str


class RerankRequest(Body):
    """A query and what is to be ordered by how well it answers the query."""

    model: str
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | Document], Field(min_length=1, max_length=MAX_TEXTS)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = True
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        return [document if isinstance(document, str) else document.text for document in self.documents]


def register(app: FastAPI, errors: dict[int | str, dict[str, Any]]) -> None:
    """Adds the end points. `errors`: the responses of failures, for the OpenAPI document."""

    @app.post("/v1/embeddings", responses=errors)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        service: Service = app.state.service
        if any(not row for row in body.rows):
            raise invalid("input", "input: must not hold an empty text")
        vectors, usage = await _run(request, service, body.model, body.rows, "embedding", "input")
        if body.dimensions is not None and body.dimensions != len(vectors[0]):
            raise invalid("dimensions", f"dimensions: got {body.dimensions}; this model has {len(vectors[0])}")
        data = [
            {"object": "embedding", "index": index, "embedding": _form(vector, body.encoding_format)}
            for index, vector in enumerate(vectors)
        ]
        return JSONResponse({"object": "list", "data": data, "model": body.model, "usage": usage})

    @app.post("/v1/rerank", responses=errors)
    async def rerank(body: RerankRequest, request: Request) -> Response:
        service: Service = app.state.service
        pairs = [(body.query, text) for text in body.texts]
        rows, usage = await _run(request, service, body.model, pairs, "score", "documents")
        scores = [float(row[0]) for row in rows]
        best_first = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        results = [
            {"index": index, "relevance_score": scores[index]}
            | ({"document": {"text": body.texts[index]}} if body.return_documents else {})
            for index in best_first[: body.top_n]
        ]
        answer_id = request.state.record.request_id
        return JSONResponse({"id": answer_id, "model": body.model, "results": results, "usage": usage})


async def _run(
    request: Request, service: Service, model: str, rows: Sequence[EncoderRow], output: str, param: str
) -> tuple[list[Any], dict[str, int]]:
    """The output's rows and OpenAI's `usage`; Triton's names of inputs become the body's field."""
    request.state.record.fields["model"] = model
    try:
        vectors, num_tokens = await until_disconnect(request, service.encode(model, rows, output))
    except GatewayError as error:
        if error.param in ("text_input", "text_pair", "input_ids"):
            raise invalid(param, error.message.replace(error.param, param, 1)) from error
        raise
    return vectors, {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def _form(vector: Any, encoding_format: str | None) -> str | list[float]:
    if encoding_format == "base64":
        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    return [float(value) for value in vector]
