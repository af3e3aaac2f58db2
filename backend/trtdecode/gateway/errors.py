"""The error object of OpenAI for everything that goes wrong, and what the statuses of Triton become."""

from __future__ import annotations

from typing import Any

from trtdecode.errors import status_of_text

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    499: "request_cancelled",
    503: "service_unavailable",
    504: "timeout_error",
}

#: gRPC status of tritonclient -> HTTP. Triton has no deadline status: a passed deadline comes as UNAVAILABLE.
_GRPC = {
    "StatusCode.INVALID_ARGUMENT": 400,
    "StatusCode.NOT_FOUND": 404,
    "StatusCode.ALREADY_EXISTS": 400,
    "StatusCode.CANCELLED": 499,
    "StatusCode.UNAVAILABLE": 503,
    "StatusCode.DEADLINE_EXCEEDED": 504,
    "StatusCode.UNIMPLEMENTED": 400,
    "StatusCode.RESOURCE_EXHAUSTED": 503,
}


class GatewayError(Exception):
    """Ends one HTTP request with OpenAI's error object.

    Args:
        param: the body's field that is at fault, or None.
        retry_after: seconds for the Retry-After header, or None.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, "internal_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def invalid(param: str | None, message: str) -> GatewayError:
    """A 400 that names the field."""
    return GatewayError(400, message, param=param, code="invalid_value")


def from_triton(status: str | None, message: str) -> GatewayError:
    """A Triton error as the client of the gateway should see it.

    Args:
        status: gRPC's; None for an error inside a stream, which has a text alone.

    Our backend's texts begin with the field's name ("max_tokens: got -1; must be ..."), which becomes `param`.
    """
    http = status_of_text(message).http_status if status is None else _GRPC.get(status, 500)
    if http == 503 and "deadline" in message:
        http = 504
    param = message.split(":", 1)[0] if http == 400 and ": got " in message else None
    return GatewayError(http, message, param=param, retry_after=1 if http == 503 else None)
