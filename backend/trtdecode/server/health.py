"""Is this server still serving? Triton does not notice a dead stub (the model stays READY), so we look ourselves."""

from __future__ import annotations

import http.client
import time
from dataclasses import dataclass, field

from trtdecode.errors import ServerError
from trtdecode.server.backend_dir import BACKEND_NAME
from trtdecode.server.client import ServerClient
from trtdecode.server.control import list_control_sockets
from trtdecode.server.processes import StubProcess

#: A counter of ours that grows with every generated token: growth is proof of life without asking.
PROGRESS_METRIC = "trtdecode_generation_tokens"
#: What Triton answers for a stub that is gone; its status is that of a bad request.
_UNHEALTHY = b"is not healthy"
#: A stub that is ready is taken note of within milliseconds; after this long it never will be.
HUNG_AFTER_S = 20.0


def seconds_since_loaded(model: str, stubs: list[StubProcess]) -> float | None:
    """How long ago the last stub of the model finished its `initialize`; None while one has not, or there is none.

    A control socket is the last thing that `initialize` makes.
    """
    made = {entry.stub_pid: entry.made_at for entry in list_control_sockets()}
    pids = [stub.pid for stub in stubs if stub.is_alive and stub.instance.startswith(f"{model}_")]
    if not pids or not all(pid in made for pid in pids):
        return None
    return time.time() - max(made[pid] for pid in pids)


def hung_load(stubs: list[StubProcess], index: list[dict[str, str]]) -> str | None:
    """The reason to restart when Triton still waits for a stub that has long been ready, or None.

    Under load 2.51 sometimes never sees the message that ends a stub's initialisation.
    """
    for row in index:
        if row.get("state") == "LOADING":
            seconds = seconds_since_loaded(row["name"], stubs)
            if seconds is not None and seconds > HUNG_AFTER_S:
                return f"the load of {row['name']} hangs: its stub has been ready for {seconds:.0f} s"
    return None


@dataclass(slots=True)
class StubWatch:
    """Tells a dead stub from one that was unloaded or replaced.

    A stub is dead when for two looks in a row it is a zombie (Triton waits for the stub of an unloaded model at once),
    or gone while its model has more READY versions than live stubs (a reload starts the new stub before it ends the
    old one).
    """

    _known: dict[int, str] = field(default_factory=dict)  # pid -> instance
    _suspects: set[int] = field(default_factory=set)

    def look(self, stubs: list[StubProcess], index: list[dict[str, str]]) -> str | None:
        """The reason to restart, or None.

        Args:
            stubs: `TritonServer.stubs()`.
            index: the repository index.
        """
        alive = {stub.pid: stub.instance for stub in stubs if stub.is_alive}
        self._known.update(alive)
        suspects = {stub.pid for stub in stubs if not stub.is_alive}
        for pid in set(self._known) - set(alive) - suspects:
            model = _model_of(self._known[pid], index)
            ready = sum(row["name"] == model and row.get("state") == "READY" for row in index)
            live = sum(_model_of(other, index) == model for other in alive.values())
            if live < ready:
                suspects.add(pid)
            else:
                del self._known[pid]  # unloaded or replaced
        dead = suspects & self._suspects
        self._suspects = suspects
        if dead:
            pid = min(dead)
            return f"the stub of {self._known.get(pid, 'a model')} (pid {pid}) died"
        return None


def _model_of(instance: str, index: list[dict[str, str]]) -> str:
    """Triton names instances MODEL_GROUP or MODEL_GROUP_COUNT; the longest model name that fits wins."""
    names = [row["name"] for row in index if instance.startswith(row["name"] + "_")]
    return max(names, key=len, default="")


@dataclass(slots=True)
class Liveness:
    """A one-token generate on each of our models, unless the token counter has grown since the last look.

    Args:
        timeout_s: how long a generate may take.
    """

    timeout_s: float = 30.0
    _last_tokens: float = -1.0
    _ours: dict[str, bool] = field(default_factory=dict)

    def check(self, client: ServerClient) -> str | None:
        """The reason to doubt the server, or None. Refusals (busy, draining, bad input) are answers: it lives."""
        try:
            tokens = counter_sum(client.metrics(), PROGRESS_METRIC)
            grew, self._last_tokens = tokens > self._last_tokens >= 0, tokens
            if grew:
                return None
            for model in client.ready_models():
                if self._is_ours(client, model):
                    body = {"text_input": "a", "max_tokens": 1, "exclude_input_in_output": True}
                    answer = client.generate(model, body, self.timeout_s)
                    if answer.status == 500 or _UNHEALTHY in answer.body:
                        return f"{model} answered a one-token generate with {answer.body.decode(errors='replace')}"
        except (OSError, http.client.HTTPException, ServerError) as error:
            return f"a one-token generate got no answer ({error or type(error).__name__})"
        return None

    def _is_ours(self, client: ServerClient, model: str) -> bool:
        if model not in self._ours:
            config = client.call("GET", f"/v2/models/{model}/config", timeout_s=self.timeout_s).json()
            self._ours[model] = config.get("backend") == BACKEND_NAME
        return self._ours[model]


def counter_sum(metrics: str, prefix: str) -> float:
    """The sum over all labels of the metrics whose name begins with `prefix`; 0 when there is none."""
    total = 0.0
    for line in metrics.splitlines():
        if line.startswith(prefix):
            total += float(line.rsplit(" ", 1)[1])
    return total
