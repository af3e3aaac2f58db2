"""An encoder's version is promoted on a real tritonserver: gates of its own, and no request lost in the cut-over."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_encoders import write_classifier
from triton_fixtures import RunningServer
from trtbuild.pipeline import import_checkpoint
from trtdecode.promote.cutover import states
from trtdecode.promote.limits import read_limits
from trtdecode.promote.promote import Outcome, Request, promote, rollback

pytestmark = [pytest.mark.triton_server, pytest.mark.slow]

BODY = {"text_input": "what is a b-tree?", "text_pair": "a b-tree is a tree."}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reranker")
    write_classifier(folder, num_labels=1)
    return folder


@pytest.fixture
def served(make_server: Callable[..., RunningServer], checkpoint: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """A server with version 1."""
    import_checkpoint(checkpoint, tmp_path / "repository" / "reranker")
    with make_server(tmp_path / "repository") as server:
        yield server


class Clients:
    """Two threads that ask without pause; `failures` are the answers that are not a 200."""

    def __init__(self, server: RunningServer) -> None:
        self.answers, self.failures = 0, list[bytes]()
        self._server, self._stop = server, threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            answer = self._server.client.generate("reranker", BODY)
            if answer.status == 200:
                self.answers += 1
            else:
                self.failures.append(answer.body)


def test_promotion_and_rollback(served: RunningServer, checkpoint: Path, tmp_path: Path) -> None:
    # The same weights in INT8 as well: artefacts of their own.
    source = import_checkpoint(checkpoint, tmp_path / "new", precisions=("f32", "int8")).version_dir
    request = Request(
        source=source,
        target=served.repository,
        model="reranker",
        limits=read_limits(),
        who="the tests",
        golden=tmp_path / "golden.jsonl",
        client=served.client,
        timeout_s=60,
    )

    def ask(**changes: object) -> Outcome:
        return promote(dataclasses.replace(request, **changes), say=lambda text: None)  # type: ignore[arg-type]

    impossible = dataclasses.replace(request.limits.parity, max_mean_abs_error=0.0)
    refused = ask(limits=dataclasses.replace(request.limits, parity=impossible))
    assert not refused.promoted
    assert refused.verdicts[-1].gate == "encoding"
    assert "relative to the outputs, is" in refused.verdicts[-1].evidence and "limit 0" in refused.verdicts[-1].evidence

    with Clients(served) as clients:
        outcome = ask()
        assert outcome.promoted, outcome.message
        assert states(served.client, "reranker")[2] == "READY"
        assert rollback(served.repository, "reranker", served.client, 60, say=lambda text: None) == 1
    assert clients.failures == []
    assert clients.answers > 20
    gates = ["artefacts", "compatibility", "engines", "memory", "encoding"]
    assert [verdict.gate for verdict in outcome.verdicts] == gates
    assert outcome.verdicts[-1].figures["relative_error"] < 1e-5
