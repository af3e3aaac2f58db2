"""What every line of a batch has in common: its envelope, its errors, and the checks of its body."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from trtdecode.errors import InvalidRequest, RequestError, wire_status
from trtdecode.gateway.encoder_bodies import EmbeddingRequest, RerankRequest
from trtdecode.gateway.errors import GatewayError, invalid
from trtdecode.gateway.schemas import ChatRequest, CompletionRequest
from trtdecode.gateway.validation import wrong_field
from trtdecode.offline.files import BatchLine

Body = TypeVar("Body", ChatRequest, CompletionRequest, EmbeddingRequest, RerankRequest)


def result_of(line: BatchLine, body_of: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The output line of one request: a body with status 200, or an error body with its status.

    Args:
        body_of: makes the body from a request id; raises GatewayError or RequestError.
    """
    request_id = uuid.uuid4().hex
    try:
        status, body = 200, body_of(request_id)
    except GatewayError as error:
        status, body = error.status, error.body
    except RequestError as error:
        param = error.field if isinstance(error, InvalidRequest) else None
        failed = GatewayError(wire_status(error).http_status, str(error), param=param)
        status, body = failed.status, failed.body
    return {
        "id": f"batch_req_{request_id}",
        "custom_id": line.custom_id,
        "response": {"status_code": status, "request_id": request_id, "body": body},
        "error": None,
    }


def check_url(line: BatchLine, known: Sequence[str]) -> None:
    """Raises GatewayError 400 for a method or an end point that is not answered here."""
    if line.method != "POST":
        raise invalid("method", f"method: got {line.method!r}; must be POST")
    if line.url not in known:
        raise invalid("url", f"url: got {line.url!r}; must be {' or '.join(known)}")


def validated(kind: type[Body], raw: Any, model: str) -> Body:
    """The body, checked, for this model. Raises GatewayError 400 naming the field, or 404 for another model."""
    try:
        body = kind.model_validate(raw)
    except ValidationError as error:
        field, text = wrong_field(error.errors(include_url=False))
        raise invalid(field or "body", f"{field or 'body'}: {text}") from None
    if body.model != model:
        raise GatewayError(404, f"model: got {body.model!r}; this run serves {model!r}", param="model")
    return body
