"""Promotions on a real tritonserver: one that goes through, one refused by each gate that needs it, a rollback."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chain_model import write_chain_checkpoint
from triton_fixtures import POOL, RunningServer, wait_for
from trtbuild.pipeline import import_checkpoint
from trtdecode.cli import main
from trtdecode.errors import ServerError
from trtdecode.manifest import entry_of, read_manifest, write_manifest
from trtdecode.promote.cutover import states
from trtdecode.promote.gate import CANDIDATE, Context, closing
from trtdecode.promote.gates import contract, golden, leak, load
from trtdecode.promote.limits import Limits, read_limits
from trtdecode.promote.promote import Outcome, Request, promote, rollback
from trtdecode.promote.publish import PromotionError, versions
from trtdecode.promote.record import history

pytestmark = [pytest.mark.triton_server, pytest.mark.slow]


@pytest.fixture(scope="module")
def limits() -> Limits:
    """The shipped kinds of limits at sizes for a test; the speed of a busy machine is not what is tested here."""
    shipped = read_limits()
    return dataclasses.replace(
        shipped,
        load=dataclasses.replace(
            shipped.load,
            requests=12,
            concurrency=4,
            output_tokens=8,
            max_ttft_p95_ratio=20.0,
            min_tokens_per_s_ratio=0.05,
        ),
        leak=dataclasses.replace(shipped.leak, requests=30),
    )


def source_version(chain_version: Path, folder: Path, note: str) -> Path:
    """The chain model again, as artefacts of their own."""
    source = folder / "chain" / "1"
    shutil.copytree(chain_version, source)
    write_manifest(source, dataclasses.replace(read_manifest(source), source=note))
    return source


@pytest.fixture(scope="module")
def golden_file(tmp_path_factory: pytest.TempPathFactory, chain_version: Path, limits: Limits) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    (folder / "target").mkdir()
    with closing(Context(chain_version, folder / "target", "chain", limits, folder / "golden.jsonl")) as context:
        golden.record_golden(context, folder / "golden.jsonl")
    return folder / "golden.jsonl"


class Clients:
    """Asks without pause, as users do while a promotion runs; counts answers and failures."""

    def __init__(self, server: RunningServer) -> None:
        self.answers = 0
        self.failures: list[str] = []
        self._server = server
        self._stop = threading.Event()
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
            body = {"text_input": "!", "temperature": 0.0, "exclude_input_in_output": True}
            answer = self._server.client.generate("chain", body)
            if answer.status == 200 and answer.json()["text_output"] == "ABCDE":
                self.answers += 1
            else:
                self.failures.append(f"{answer.status}: {answer.body!r}")


@pytest.fixture
def served(
    make_server: Callable[..., RunningServer], make_repository: Callable[[dict[str, str]], Path]
) -> Iterator[RunningServer]:
    """A server with version 1 of the chain model, controlled explicitly."""
    with make_server(make_repository({"chain": ""})) as server:
        yield server


@pytest.fixture
def ask(served: RunningServer, limits: Limits, golden_file: Path) -> Callable[..., Outcome]:
    """Promotes a source to the served repository."""

    def run(source: Path, **changes: object) -> Outcome:
        request = Request(
            source=source,
            target=served.repository,
            model="chain",
            limits=limits,
            who="the tests",
            golden=golden_file,
            client=served.client,
            timeout_s=60,
        )
        return promote(dataclasses.replace(request, **changes), say=lambda text: None)  # type: ignore[arg-type]

    return run


def test_a_promotion_loses_no_request_and_can_be_taken_back(
    served: RunningServer, ask: Callable[..., Outcome], chain_version: Path, tmp_path: Path
) -> None:
    source = source_version(chain_version, tmp_path, "second")
    with Clients(served) as clients:
        outcome = ask(source)
    assert outcome.promoted, outcome.message
    assert clients.failures == []
    assert clients.answers > 20
    assert outcome.number == 2
    assert states(served.client, "chain")[2] == "READY"
    assert outcome.cut_over is not None
    assert outcome.cut_over.old_gone_after is not None

    record = json.loads((served.repository / "chain" / "2" / "reports" / "promotion.json").read_text())
    assert (record["who"], record["version"], record["passed"]) == ("the tests", 2, True)
    gates = ["artefacts", "compatibility", "engines", "memory", "parity", "contract", "golden", "load", "leak"]
    assert [gate["gate"] for gate in record["gates"]] == gates
    assert "contract" in (served.repository / "chain" / "2" / "reports" / "promotion.html").read_text()
    assert [entry["version"] for entry in history(served.repository / "chain")] == [2]

    again = ask(source)  # idempotent: nothing is asked or copied twice
    assert (again.promoted, again.number, again.verdicts) == (True, 2, [])
    assert versions(served.repository / "chain") == [1, 2]

    with Clients(served) as clients:
        assert rollback(served.repository, "chain", served.client, 60, say=lambda text: None) == 1
    assert clients.failures == []
    assert states(served.client, "chain").get(1) == "READY"
    assert history(served.repository / "chain")[0]["in_repository"] is False
    with pytest.raises(PromotionError, match="none to return to"):
        rollback(served.repository, "chain", served.client, 60)


def test_replace_drains_first(
    served: RunningServer, ask: Callable[..., Outcome], chain_version: Path, tmp_path: Path
) -> None:
    outcome = ask(
        source_version(chain_version, tmp_path, "third"),
        mode="replace",
        skip=frozenset({"parity", "contract", "golden", "load", "leak"}),
    )
    assert outcome.promoted, outcome.message
    assert states(served.client, "chain")[2] == "READY"
    assert served.greedy("chain", "!") == "ABCDE"


def test_a_changed_weight_is_refused_by_golden(
    served: RunningServer, ask: Callable[..., Outcome], chain_version: Path, tmp_path: Path
) -> None:
    source = source_version(chain_version, tmp_path, "tampered")
    data = source / "decoder.onnx.data"
    content = bytearray(data.read_bytes())
    half = len(content) // 2 // 4 * 4
    content[half:] = content[: len(content) - half]
    data.write_bytes(content)
    manifest = read_manifest(source)
    write_manifest(source, dataclasses.replace(manifest, files={**manifest.files, data.name: entry_of(data)}))
    outcome = ask(source, skip=frozenset({"contract"}))
    assert not outcome.promoted
    assert outcome.verdicts[-1].gate in ("parity", "golden")
    assert "version 1 serves on" in outcome.message
    assert versions(served.repository / "chain") == [1]
    assert served.greedy("chain", "!") == "ABCDE"


def test_a_version_that_does_not_load_leaves_the_old_one_serving(
    served: RunningServer, ask: Callable[..., Outcome], chain_version: Path, tmp_path: Path
) -> None:
    source = source_version(chain_version, tmp_path, "broken")
    data = source / "decoder.onnx"
    data.write_bytes(b"not a graph")
    manifest = read_manifest(source)
    write_manifest(source, dataclasses.replace(manifest, files={**manifest.files, data.name: entry_of(data)}))
    needed = frozenset({"parity", "contract", "golden", "load", "leak"})
    with Clients(served) as clients, pytest.raises(PromotionError, match="version 1 serves on"):
        ask(source, skip=needed)
    assert clients.failures == []
    assert clients.answers > 0
    assert versions(served.repository / "chain") == [1]
    assert (served.repository / "chain" / ".2.rolled_back").is_dir()


NO_GATES = frozenset(
    {"artefacts", "compatibility", "engines", "memory", "parity", "contract", "golden", "load", "leak"}
)


def test_a_canary_is_compared_beside_the_version_in_service(
    served: RunningServer,
    ask: Callable[..., Outcome],
    chain_version: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Clients(served) as clients:
        outcome = ask(source_version(chain_version, tmp_path, "canary"), skip=NO_GATES, canary=6)
    assert outcome.promoted, outcome.message
    assert clients.failures == []
    verdict = outcome.verdicts[-1]
    assert (verdict.gate, verdict.passed) == ("canary", True)
    assert (verdict.figures["requests"], verdict.figures["equal"], verdict.figures["failures"]) == (6, 6, 0)
    record = json.loads((served.repository / "chain" / "2" / "reports" / "promotion.json").read_text())
    assert record["gates"][-1]["gate"] == "canary"
    assert not (served.repository / "chain--candidate").exists()
    assert served.client.ready_models() == ["chain"]
    assert main(["history", "chain", "--to", str(served.repository)]) == 0
    line = capsys.readouterr().out
    assert "  version 2  by the tests  " in line and line.endswith("canary ok\n")


def test_a_canary_that_fails_its_requests_is_withdrawn(
    served: RunningServer, ask: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Its context is so short that requests which the version in service answers do not fit."""
    checkpoint = write_chain_checkpoint(tmp_path / "checkpoint", max_context_len=32)
    source = import_checkpoint(checkpoint, tmp_path / "chain", precisions=("f32",)).version_dir
    with Clients(served) as clients:
        outcome = ask(source, skip=NO_GATES, canary=6)
    assert not outcome.promoted
    assert outcome.message == "refused by canary; version 1 serves on"
    assert "requests failed on the candidate: 400" in outcome.verdicts[-1].evidence
    assert clients.failures == []
    assert versions(served.repository / "chain") == [1]
    assert not (served.repository / "chain--candidate").exists()
    assert served.client.ready_models() == ["chain"]


@pytest.fixture
def candidate(chain_version: Path, tmp_path: Path, limits: Limits, golden_file: Path) -> Iterator[Context]:
    """A context with the chain model as candidate and as version in service."""
    (tmp_path / "target" / "chain").mkdir(parents=True)
    (tmp_path / "target" / "chain" / "config.pbtxt").write_text(f'backend: "trtdecode"\n{POOL}\n')
    with closing(Context(chain_version, tmp_path / "target", "chain", limits, golden_file)) as context:
        context.current_dir = chain_version
        yield context


RENAMED_MODEL = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "prompt", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "completion", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def execute(self, requests):
        raise NotImplementedError
"""


def test_contract_refuses_wrong_tensor_names(candidate: Context, tmp_path: Path) -> None:
    renamed = tmp_path / "renamed"
    shutil.copytree(candidate.version_dir, renamed)
    (renamed / "model.py").write_text(RENAMED_MODEL)
    (candidate.target / "chain" / "config.pbtxt").write_text('backend: "python"\n')
    candidate.version_dir, candidate.current_dir = renamed, None
    verdict = contract.GATE.run(candidate)
    assert not verdict.passed
    assert "input 'text_input' is missing" in verdict.evidence


def test_leak_refuses_blocks_that_stay_in_use(candidate: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that never stop hold blocks, as a leak would."""
    monkeypatch.setattr(leak, "SETTLE_S", 0.5)
    client = candidate.server().client
    body = {"text_input": "x", "stream": True, "max_tokens": 4000, "temperature": 0.0}
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            for _ in client.generate_stream(CANDIDATE, body):
                if stop.is_set():
                    return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        verdict = leak.GATE.run(candidate)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert not verdict.passed
    assert "KV blocks are still in use" in verdict.evidence


def test_load_refuses_a_slow_candidate(candidate: Context, smollm2_version: Path) -> None:
    """SmolLM2 has hundreds of times the chain model's work a token: as slow as a broken executor."""
    candidate.version_dir = smollm2_version
    strict = dataclasses.replace(candidate.limits.load, requests=6, min_tokens_per_s_ratio=0.8)
    candidate.limits = dataclasses.replace(candidate.limits, load=strict)
    verdict = load.GATE.run(candidate)
    assert not verdict.passed
    assert "of those in service, limit 0.8" in verdict.evidence


def test_a_server_that_dies_in_mid_load_loses_no_version(
    served: RunningServer,
    ask: Callable[..., Outcome],
    make_server: Callable[..., RunningServer],
    chain_version: Path,
    tmp_path: Path,
) -> None:
    def watch() -> None:  # until Triton has begun to load it, which takes a second or so
        wait_for(lambda: any(stub.pid != first for stub in served.stubs()), 30, "the new version's stub")
        served.kill()

    first = served.stub_pid("chain")
    killer = threading.Thread(target=watch)
    killer.start()
    with pytest.raises(PromotionError, match=r"could not load version 2: .*; and version 1 could not be loaded again"):
        ask(source_version(chain_version, tmp_path, "unlucky"), skip=NO_GATES)
    killer.join()
    assert versions(served.repository / "chain") == [1]
    with make_server(served.repository) as again:
        assert again.greedy("chain", "!") == "ABCDE"


def test_a_server_that_is_away_changes_nothing(
    served: RunningServer, ask: Callable[..., Outcome], chain_version: Path, tmp_path: Path
) -> None:
    source = source_version(chain_version, tmp_path, "late")
    served.kill()
    with pytest.raises((PromotionError, ServerError, OSError)):
        ask(source)
    assert versions(served.repository / "chain") == [1]
