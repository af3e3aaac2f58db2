"""The Triton servers behind the gateway, and which one answers a request."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from trtdecode.gateway.errors import GatewayError
from trtdecode.gateway.triton import TritonConnection

#: Tokens hashed together, as in the KV cache: a shorter common prefix saves nothing there.
PREFIX_BLOCK = 32
MAX_REMEMBERED_BLOCKS = 200_000


class Replicas:
    """Chooses by prefix (a conversation returns to the replica that holds its blocks) or by least running."""

    def __init__(self, connections: Sequence[TritonConnection], *, prefix_affinity: bool) -> None:
        self.connections = list(connections)
        self._prefix_affinity = prefix_affinity and len(connections) > 1
        self._running = [0] * len(connections)
        self._holders: OrderedDict[bytes, int] = OrderedDict()  # digest of a prefix -> replica, least recent first

    def choose(self, prompt: str | list[int]) -> tuple[int, str]:
        """Index of the replica for a prompt, and why ("prefix", "least-running", "only")."""
        if len(self.connections) == 1:
            return 0, "only"
        if not self._prefix_affinity:
            return self._least_running(), "least-running"
        digests = prefix_digests(prompt)
        held = next((self._holders[digest] for digest in reversed(digests) if digest in self._holders), None)
        # A replica with twice the work of the idlest one is not worth the cached prefix.
        idlest = self._least_running()
        if held is None or self._running[held] > 2 * self._running[idlest] + 8:
            chosen, why = idlest, "least-running"
        else:
            chosen, why = held, "prefix"
        for digest in digests:
            self._holders[digest] = chosen
            self._holders.move_to_end(digest)
        while len(self._holders) > MAX_REMEMBERED_BLOCKS:
            self._holders.popitem(last=False)
        return chosen, why

    async def choose_ready(self, prompt: str | list[int]) -> tuple[int, str]:
        """`choose`, skipping replicas that are away.

        Raises:
            GatewayError: 503 with Retry-After when none is ready.
        """
        chosen, why = self.choose(prompt)
        if len(self.connections) == 1 or await self.connections[chosen].is_ready():
            return chosen, why
        for index, connection in enumerate(self.connections):
            if index != chosen and await connection.is_ready():
                return index, "failover"
        raise GatewayError(503, "no inference server is ready; retry later", retry_after=2)

    def started(self, index: int) -> None:
        self._running[index] += 1

    def ended(self, index: int) -> None:
        self._running[index] -= 1

    def _least_running(self) -> int:
        return min(range(len(self._running)), key=self._running.__getitem__)


def prefix_digests(prompt: str | list[int]) -> list[bytes]:
    """Chained digests of the prompt's full blocks, shortest prefix first; a text is cut in characters times four."""
    step = PREFIX_BLOCK * 4 if isinstance(prompt, str) else PREFIX_BLOCK
    digests = []
    chain = hashlib.blake2b(digest_size=12)
    for begin in range(0, len(prompt) - step + 1, step):
        part = prompt[begin : begin + step]
        chain.update(part.encode() if isinstance(part, str) else ",".join(map(str, part)).encode())
        digests.append(chain.digest())
    return digests
