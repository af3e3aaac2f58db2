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
    version: str | None = None,
    server_pid: int | None = None,
    cancel: bool = False,
    timeout_s: float = 30.0,
) -> list[DrainReport]:
    """Drains every instance of a model at once (all models when None).

    Args:
        version: only this version (a cut-over drains the old one).
        server_pid: only instances of this tritonserver; default all of this user's on this machine.
        cancel: end running requests with CANCELLED instead of waiting for them.
        timeout_s: after it, what still runs is cancelled.

    Raises:
        ServerError: no such instance runs here.
    """
    sockets = _select(model, version, server_pid)
    if not sockets:
        wanted = f"of model {model!r} " if model else ""
        raise ServerError(f"no running instance {wanted}found; is the server running on this machine, as this user?")
    with ThreadPoolExecutor(len(sockets)) as pool:
        return list(pool.map(lambda entry: _drain_one(entry, cancel, timeout_s), sockets))


def resume(model: str | None = None, *, version: str | None = None, server_pid: int | None = None) -> int:
    """Takes new work again (a promotion was called off); returns the number of instances told."""
    entries = _select(model, version, server_pid)
    for entry in entries:
        entry.ask("resume")
    return len(entries)


def _select(model: str | None, version: str | None, server_pid: int | None) -> list[ControlSocket]:
    found = []
    for entry in list_control_sockets():
        try:
            status = entry.ask("status")
        except ServerError:
            continue  # ended between listing and asking
        wanted = {"model": model, "version": version, "server_pid": server_pid}
        if all(value is None or status[key] == value for key, value in wanted.items()):
            found.append(entry)
    return found


def _drain_one(entry: ControlSocket, cancel: bool, timeout_s: float) -> DrainReport:
    begin = time.monotonic()
    try:
        answer = entry.ask("drain", timeout_s + _ANSWER_MARGIN_S, cancel=cancel, timeout_s=timeout_s)
    except ServerError as error:
        return DrainReport(entry.instance, entry.stub_pid, False, -1, time.monotonic() - begin, str(error))
    seconds = time.monotonic() - begin
    return DrainReport(entry.instance, entry.stub_pid, bool(answer["drained"]), int(answer["live"]), seconds)
