"""What only stubs on this machine can be asked or told, through their control sockets.

The map of KV blocks: `/metrics` has counts alone, and a request to the model would count as one. And that a client has
just left, which a stub otherwise finds out at its own pace. Replicas on other machines have no map here, and find out.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from trtdecode.errors import ServerError
from trtdecode.server.control import ControlSocket, list_control_sockets
from trtdecode.server.processes import listener_of

_WAIT_S = 1.0


class LocalInspector:
    """Answers for the replicas whose gRPC port a process of this user and machine listens on."""

    def __init__(self, triton_urls: tuple[str, ...]) -> None:
        self._ports = [int(url.rpartition(":")[2]) if _is_local(url) else None for url in triton_urls]
        self._sockets: dict[tuple[int, str], list[ControlSocket]] = {}

    async def __call__(self, replica: int, model: str) -> dict[str, Any] | None:
        """`blocks`, `blocks_per_cell` and `num_sequences` of a model; None where nobody here can tell."""
        if replica >= len(self._ports) or self._ports[replica] is None:
            return None
        return await asyncio.to_thread(self._ask, replica, model)

    def hurry(self, replica: int, model: str) -> None:
        """Tells the model's stubs that a client has just left; in the background, and nobody waits for it."""
        if replica < len(self._ports) and self._ports[replica] is not None:
            asyncio.get_running_loop().run_in_executor(None, self._tell, replica, model)

    def _tell(self, replica: int, model: str) -> None:
        key = (replica, model)
        try:
            if not self._sockets.get(key):
                self._sockets[key] = self._find(replica, model)
            for entry in self._sockets[key]:
                entry.ask("poll", _WAIT_S)
        except (ServerError, OSError):
            self._sockets.pop(key, None)

    def _ask(self, replica: int, model: str) -> dict[str, Any] | None:
        key = (replica, model)
        try:
            if not self._sockets.get(key):
                self._sockets[key] = self._find(replica, model)
            return _joined([entry.ask("inspect", _WAIT_S) for entry in self._sockets[key]])
        except (ServerError, OSError):  # the stub was replaced or is in a long step, or there is no folder of sockets
            self._sockets.pop(key, None)
            return None

    def _find(self, replica: int, model: str) -> list[ControlSocket]:
        port = self._ports[replica]
        server_pid = listener_of(port) if port is not None else None
        found = []
        for entry in list_control_sockets():
            with contextlib.suppress(ServerError):  # it is ending, or too busy to say
                status = entry.ask("status", _WAIT_S)
                if (status["model"], status["server_pid"]) == (model, server_pid):
                    found.append(entry)
        return found


def _joined(answers: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The pools of several instances one after another. Their sequences are numbered apart."""
    if not answers:
        return None
    runs = [
        [owner * len(answers) + place if owner > 0 else owner, count]
        for place, answer in enumerate(answers)
        for owner, count in answer["blocks"]
    ]
    return {
        "blocks": runs,
        "blocks_per_cell": max(answer["blocks_per_cell"] for answer in answers),
        "num_sequences": sum(answer["num_sequences"] for answer in answers),
    }


def _is_local(url: str) -> bool:
    return (
        url.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0") and url.rpartition(":")[2].isdecimal()
    )
