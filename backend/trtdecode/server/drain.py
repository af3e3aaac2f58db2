"""`trtdecode drain`: no new work, then finish (or cancel) what runs. Call it before an unload or a SIGTERM."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trtdecode.errors import ServerError
from trtdecode.server.control import ControlSocket, list_control_sockets

#: How much longer than the drain's own timeout to wait for its answer.
_ANSWER_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What one model instance said."""

    instance: str
    stub_pid: int
    drained: bool  # every accepted request has had its final response
    live: int  # requests that have not
    seconds: float
    error: str = ""  # why the instance could not be asked


def drain(
    model: str | None = None,
    *,
    stub_pids: set[int] | None = None,
    cancel: bool = False,
    timeout_s: float = 30.0,
) -> list[DrainReport]:
    """Drains every instance of a model at once (all models when None).

    Args:
        stub_pids: only these processes (a supervisor drains its own server's).
        cancel: end running requests with CANCELLED instead of waiting for them.
        timeout_s: after it, what still runs is cancelled.

    Raises:
        ServerError: no instance of the model runs here.
    """
    sockets = [
        entry
        for entry in list_control_sockets()
        if (stub_pids is None or entry.stub_pid in stub_pids) and (model is None or _model_of(entry) == model)
    ]
    if not sockets:
        wanted = f"of model {model!r} " if model else ""
        raise ServerError(f"no running instance {wanted}found; is the server running on this machine, as this user?")
    with ThreadPoolExecutor(len(sockets)) as pool:
        return list(pool.map(lambda entry: _drain_one(entry, cancel, timeout_s), sockets))


def resume(model: str | None = None) -> int:
    """Takes new work again (a promotion was called off); returns the number of instances told."""
    entries = [entry for entry in list_control_sockets() if model is None or _model_of(entry) == model]
    for entry in entries:
        entry.ask("resume")
    return len(entries)


def _model_of(entry: ControlSocket) -> str:
    try:
        return str(entry.ask("status")["model"])
    except ServerError:
        return ""


def _drain_one(entry: ControlSocket, cancel: bool, timeout_s: float) -> DrainReport:
    begin = time.monotonic()
    try:
        answer = entry.ask("drain", timeout_s + _ANSWER_MARGIN_S, cancel=cancel, timeout_s=timeout_s)
    except ServerError as error:
        return DrainReport(entry.instance, entry.stub_pid, False, -1, time.monotonic() - begin, str(error))
    seconds = time.monotonic() - begin
    return DrainReport(entry.instance, entry.stub_pid, bool(answer["drained"]), int(answer["live"]), seconds)
