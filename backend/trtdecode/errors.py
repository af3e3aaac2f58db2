"""Every error this project raises on purpose, and what each one becomes on the wire.

    TrtdecodeError
    |-- RequestError                  ends one request; its neighbours go on
    |   |-- InvalidRequest            the caller's input is wrong: names field, value and limit
    |   |-- QueueFull                 admission holds `max_queue_size` requests already
    |   |-- Draining                  the model is being unloaded and takes no new work
    |   |-- DeadlineExceeded          the request's timeout passed, waiting or running
    |   |-- RequestCancelled          the client went away or cancelled
    |   `-- ExecutorFailed            the executor raised while this request was in its batch
    `-- LoadError                     the model cannot be served (or built) at all
        |-- ConfigError               config.pbtxt: names key, value and allowed set
        |-- ManifestError             artefact missing, changed or from another builder
        |-- CheckpointError           names file, tensor and type
        |-- UnsupportedError          precision x SM x flavour, operator or architecture not supported
        |-- BuildError                an engine could not be built, or is not what was asked for
        `-- ServerError               tritonserver cannot be found, started or reached

`WIRE_STATUS` maps each request error to Triton's code and to the HTTP status that the gateway uses.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class TrtdecodeError(Exception):
    """Base of all errors raised on purpose. The text is one sentence that says what to do next."""


class RequestError(TrtdecodeError):
    """Ends exactly one request."""


class InvalidRequest(RequestError):
    """The caller's input is wrong.

    Args:
        field: name of the input tensor or sampling parameter.
        value: what was given; shortened to 80 characters in the text.
        limit: what would have been accepted, as a phrase ("must be in (0, 1]").
    """

    def __init__(self, field: str, value: object, limit: str) -> None:
        shown = repr(value)
        if len(shown) > 80:
            shown = f"{shown[:77]}..."
        super().__init__(f"{field}: got {shown}; {limit}")
        self.field = field
        self.value = value
        self.limit = limit


class QueueFull(RequestError):
    """Admission is full; the caller may retry."""

    def __init__(self, max_queue_size: int) -> None:
        super().__init__(f"queue is full (max_queue_size {max_queue_size}); retry later or raise max_queue_size")


class Draining(RequestError):
    """The model takes no new requests."""

    def __init__(self) -> None:
        super().__init__("model is draining and takes no new requests; send the request to another replica")


class DeadlineExceeded(RequestError):
    """The request's deadline passed before it finished.

    Args:
        timeout_ms: the timeout that was in force, in milliseconds.
        state: "waiting" or "running".
    """

    def __init__(self, timeout_ms: float, state: str) -> None:
        super().__init__(f"deadline of {timeout_ms:g} ms exceeded while {state}; raise the timeout or lower the load")


class RequestCancelled(RequestError):
    """The client cancelled or disconnected."""

    def __init__(self, reason: str = "cancelled by the client") -> None:
        super().__init__(f"request {reason}")


class ExecutorFailed(RequestError):
    """The executor raised; only the requests of that batch end."""


class LoadError(TrtdecodeError):
    """The model cannot be served or built."""


class ConfigError(LoadError):
    """A value in config.pbtxt (or a command line) is not usable."""


class ManifestError(LoadError):
    """The version folder does not hold what its manifest promises."""


class CheckpointError(LoadError):
    """A checkpoint is missing a part, truncated, or holds a type that we cannot read."""


class UnsupportedError(LoadError):
    """The combination is known and refused; the text names the alternative."""


class BuildError(LoadError):
    """An engine could not be built, or a check of the result (fusions, parity) failed."""


class ServerError(LoadError):
    """tritonserver cannot be found, started or reached; the text is one line that says what to do."""


class WireStatus(NamedTuple):
    """How an error leaves the process."""

    triton_code: str  # attribute name of pb_utils.TritonError
    http_status: int  # what the gateway answers

    @property
    def grpc_code(self) -> str:
        """gRPC's name of the status."""
        return "INVALID_ARGUMENT" if self.triton_code == "INVALID_ARG" else self.triton_code


WIRE_STATUS: dict[type[RequestError], WireStatus] = {
    InvalidRequest: WireStatus("INVALID_ARG", 400),
    QueueFull: WireStatus("UNAVAILABLE", 503),
    Draining: WireStatus("UNAVAILABLE", 503),
    DeadlineExceeded: WireStatus("UNAVAILABLE", 504),
    RequestCancelled: WireStatus("CANCELLED", 499),
    ExecutorFailed: WireStatus("INTERNAL", 500),
}


#: What an error's text on a gRPC stream begins with (or holds), and its status. Ours first, then Triton's own.
_BY_TEXT: tuple[tuple[str, WireStatus], ...] = (
    (r"(executor|sampler) .*raised|internal error|text output failed", WIRE_STATUS[ExecutorFailed]),
    (r"queue is full \(max_queue_size \d+\);", WIRE_STATUS[QueueFull]),
    (r"model is draining and takes", WIRE_STATUS[Draining]),
    (r"deadline of \S+ ms exceeded while", WIRE_STATUS[DeadlineExceeded]),
    (r"request (cancelled|ended) b", WIRE_STATUS[RequestCancelled]),
    (r".*: got ", WIRE_STATUS[InvalidRequest]),
    (r".*(unknown model|is not found)", WireStatus("NOT_FOUND", 404)),
    (r".*(Exceeds maximum queue size|is not ready)", WIRE_STATUS[QueueFull]),
    (r".*Request timeout expired", WIRE_STATUS[DeadlineExceeded]),
    (r".*(unexpected|expected \d+ inputs|inference input|must specify|unable to find)", WIRE_STATUS[InvalidRequest]),
)


def status_of_text(text: str) -> WireStatus:
    """The status of an error that came over a gRPC stream, which carries its text alone.

    Triton can end the stream with a status instead (header `triton_grpc_error`), but 2.51 then crashes once in some
    ten thousand refusals.
    """
    for pattern, status in _BY_TEXT:
        if re.match(pattern, text, re.DOTALL):
            return status
    return WireStatus("INTERNAL", 500)


def wire_status(error: BaseException) -> WireStatus:
    """The wire status of any exception; what is not a RequestError is INTERNAL."""
    for kind in type(error).__mro__:
        if kind in WIRE_STATUS:
            return WIRE_STATUS[kind]
    return WireStatus("INTERNAL", 500)
