"""Bodies and answers of encoders: OpenAI's /v1/embeddings, and /v1/rerank in Jina's, Cohere's and vLLM's form."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from trtdecode.errors import InvalidRequest
from trtdecode.gateway.errors import GatewayError, invalid
from trtdecode.gateway.schemas import Body, Strict

MAX_TEXTS = 2048  # OpenAI's limit

#: What an encoder is given: a text, token ids, or a query and a text.
EncoderRow = str | list[int] | tuple[str, str]
Vector = npt.NDArray[np.float32]

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
        """The texts or lists of ids. Raises GatewayError 400 for an empty one."""
        is_one = isinstance(self.input, str) or isinstance(self.input[0], int)
        rows: list[Any] = [self.input] if is_one else list(self.input)
        if not all(rows):
            raise invalid("input", "input: must not hold an empty text")
        return rows


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

    @property
    def rows(self) -> list[EncoderRow]:
        """The query with each document."""
        return [(self.query, text) for text in self.texts]


def embedding_response(body: EmbeddingRequest, vectors: Sequence[Vector], num_tokens: int) -> dict[str, Any]:
    """OpenAI's list object.

    Args:
        vectors: f32 [hidden], one a row of the body.

    Raises:
        GatewayError: 400 for `dimensions` other than the model's.
    """
    if body.dimensions is not None and body.dimensions != len(vectors[0]):
        raise invalid("dimensions", f"dimensions: got {body.dimensions}; this model has {len(vectors[0])}")
    data = [
        {"object": "embedding", "index": index, "embedding": _form(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": data, "model": body.model, "usage": encoder_usage(num_tokens)}


def rerank_response(body: RerankRequest, scores: Sequence[float], num_tokens: int, answer_id: str) -> dict[str, Any]:
    """Documents, best first; equal scores in the order of the body."""
    texts = body.texts
    best_first = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": texts[index]}} if body.return_documents else {})
        for index in best_first[: body.top_n]
    ]
    return {"id": answer_id, "model": body.model, "results": results, "usage": encoder_usage(num_tokens)}


def of_body(error: GatewayError | InvalidRequest, field: str) -> GatewayError:
    """A refusal in terms of the body: its field for our tensor's name, no advice to send a tensor it cannot have."""
    tensor = error.param if isinstance(error, GatewayError) else error.field
    message = error.message if isinstance(error, GatewayError) else str(error)
    return invalid(field, message.replace(str(tensor), field, 1).partition("; send truncate")[0])


def encoder_usage(num_tokens: int) -> dict[str, int]:
    """OpenAI's `usage` of what only reads."""
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def _form(vector: Vector, encoding_format: str | None) -> str | list[float]:
    if encoding_format == "base64":
        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    return [float(value) for value in vector]
