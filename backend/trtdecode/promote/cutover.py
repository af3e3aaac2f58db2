"""Loading the new version, which is the cut-over: a request without a version goes to the highest loaded one."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trtdecode.errors import ServerError
from trtdecode.promote.publish import PromotionError
from trtdecode.server.client import ServerClient
from trtdecode.server.control import list_control_sockets
from trtdecode.server.drain import drain
from trtdecode.server.processes import listener_of

Say = Callable[[str], None]


@dataclass(slots=True)
class CutOver:
    """What happened, for the record. Times in seconds."""

    ready_after: float = 0.0
    old_gone_after: float | None = None  # None: it was still there at the end
    holders: list[str] = field(default_factory=list)  # instances of the old version that live requests hold


def states(client: ServerClient, model: str) -> dict[int, str]:
    """State of each loaded version of a model, as Triton's index says."""
    return {
        int(row["version"]): row.get("state", "")
        for row in client.index()
        if row["name"] == model and row.get("version")
    }


def cut_over(
    client: ServerClient, model: str, number: int, *, old: int | None, mode: str, timeout_s: float, say: Say
) -> CutOver:
    """Loads `number` and watches until it is READY and the old version is gone.

    Mode overlap loads beside the old version, which serves until then. Mode replace drains and unloads first, for
    machines that cannot hold both.

    Raises:
        PromotionError: the new version did not get ready. The caller restores the old one.
    """
    start = time.monotonic()
    if mode == "replace" and old is not None:
        say(f"draining version {old}")
        _drain_old(client, model, old, timeout_s)
        client.unload(model)
        _wait(lambda: not _is_ready(client, model, old), timeout_s, f"version {old} does not unload")
    say(f"loading version {number}")
    try:
        client.load(model, timeout_s)
    except (ServerError, OSError, http.client.HTTPException) as error:
        raise PromotionError(f"Triton could not load version {number}: {error}") from error
    _wait(lambda: _is_ready(client, model, number), timeout_s, f"version {number} does not get ready")
    result = CutOver(ready_after=round(time.monotonic() - start, 3))
    if old is not None and old != number:
        _watch_old(client, model, old, timeout_s, result, start, say)
    return result


def _drain_old(client: ServerClient, model: str, old: int, timeout_s: float) -> None:
    """Drains this server's instances alone: another server on the machine may have a model of the same name."""
    server_pid = listener_of(client.http_port)
    if server_pid is None:
        raise PromotionError(
            f"mode replace drains through a socket on the server's own machine, and nothing that this user may see "
            f"listens on port {client.http_port} here; promote there, or use mode overlap"
        )
    drain(model, version=str(old), server_pid=server_pid, timeout_s=timeout_s)


def _watch_old(
    client: ServerClient, model: str, old: int, timeout_s: float, result: CutOver, start: float, say: Say
) -> None:
    """Streams that run on hold the old version; they are named, not cut off."""
    deadline = time.monotonic() + timeout_s
    while states(client, model).get(old, "UNAVAILABLE") not in ("UNAVAILABLE", ""):
        result.holders = _holders(model)
        if time.monotonic() > deadline:
            say(f"version {old} is still held by {', '.join(result.holders) or 'streams of its clients'}")
            return
        time.sleep(0.2)
    result.old_gone_after = round(time.monotonic() - start, 3)
    result.holders = []


def _holders(model: str) -> list[str]:
    found = []
    for entry in list_control_sockets():
        try:
            status = entry.ask("status")
        except ServerError:
            continue
        if status.get("model") == model and status.get("live"):
            found.append(f"{entry.instance} (process {entry.stub_pid}): {status['live']} requests")
    return found


def _is_ready(client: ServerClient, model: str, number: int) -> bool:
    return states(client, model).get(number) == "READY"


def _wait(condition: Callable[[], bool], timeout_s: float, failure: str) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except (ServerError, OSError, http.client.HTTPException) as error:
            raise PromotionError(f"{failure}: the server does not answer ({error})") from error
        if time.monotonic() > deadline:
            raise PromotionError(f"{failure} within {timeout_s:g} s")
        time.sleep(0.1)
