"""End points of encoders.

Each text is a request of its own to Triton, whose batcher puts it together with whatever else arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from trtdecode.gateway.encoder_bodies import (
    EmbeddingRequest,
    EncoderRow,
    RerankRequest,
    embedding_response,
    of_body,
    rerank_response,
)
from trtdecode.gateway.errors import GatewayError
from trtdecode.gateway.service import Service
from trtdecode.gateway.streaming import until_disconnect


def register(app: FastAPI, errors: dict[int | str, dict[str, Any]]) -> None:
    """Adds the end points. `errors`: the responses of failures, for the OpenAPI document."""

    @app.post("/v1/embeddings", responses=errors)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        service: Service = app.state.service
        vectors, num_tokens = await _run(request, service, body.model, body.rows, "embedding", "input")
        return JSONResponse(embedding_response(body, vectors, num_tokens))

    @app.post("/v1/rerank", responses=errors)
    async def rerank(body: RerankRequest, request: Request) -> Response:
        service: Service = app.state.service
        rows, num_tokens = await _run(request, service, body.model, body.rows, "score", "documents")
        scores = [float(row[0]) for row in rows]
        return JSONResponse(rerank_response(body, scores, num_tokens, request.state.record.request_id))


async def _run(
    request: Request, service: Service, model: str, rows: Sequence[EncoderRow], output: str, param: str
) -> tuple[list[Any], int]:
    """The output's rows and the number of tokens; Triton's names of inputs become the body's field."""
    request.state.record.fields["model"] = model
    try:
        return await until_disconnect(request, service.encode(model, rows, output))
    except GatewayError as error:
        if error.param in ("text_input", "text_pair", "input_ids"):
            raise of_body(error, param) from error
        raise
