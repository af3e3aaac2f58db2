"""Half a minute of the fuzz against a real server and the gateway, and that it sees what it looks for."""

from __future__ import annotations

import json
from pathlib import Path

import fuzz
import pytest
from fuzz_requests import GENERATE, Shot, shots
from hypothesis import HealthCheck, given, settings
from watched_server import WatchedServer

NUM_REQUESTS = 500
CHECKS = list(HealthCheck)


@pytest.mark.triton_server
@pytest.mark.slow
@pytest.mark.usefixtures("make_server")  # skips where there is no tritonserver
def test_no_request_does_harm(capsys: pytest.CaptureFixture[str]) -> None:
    status = fuzz.main(["--requests", str(NUM_REQUESTS), "--seed", "20"])
    told = capsys.readouterr().out
    assert status == 0, told
    assert "healthy requests of 100 tokens were right" in told


@pytest.mark.triton_server
@pytest.mark.usefixtures("make_server")
def test_an_undocumented_status_and_a_dead_server_are_seen(
    chain_version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shot = Shot("triton", GENERATE[0], b"null")
    with WatchedServer(fuzz.PARAMETERS, chain_version) as watched:
        target = fuzz.Target(watched, 0)
        target.send(shot)
        monkeypatch.setattr(fuzz, "DOCUMENTED", ())
        with pytest.raises(fuzz.Fault, match=r"500 .*non-object"):
            target.send(shot)
        watched.server.kill()
        with pytest.raises(fuzz.ServerCrashed, match=f"tritonserver {watched.version}"):
            target.send(shot)


def test_the_requests_are_of_every_kind() -> None:
    """Every way in is used, and nearly every field occurs in what is valid JSON."""
    seen: list[Shot] = []

    @settings(max_examples=2400, database=None, derandomize=True, deadline=None, suppress_health_check=CHECKS)
    @given(shots())
    def collect(shot: Shot) -> None:
        seen.append(shot)

    collect()
    assert {shot.where for shot in seen} == {"triton", "gateway", "socket"}
    fields: set[str] = set()
    for shot in seen:
        try:
            body = json.loads(shot.body)
            fields |= set(body)
            fields |= set(json.loads(body["sampling_parameters"]))
        except (ValueError, TypeError, KeyError):
            continue
    names = {*fuzz_fields()}
    assert len(names - fields) <= len(names) // 20, "twelve of twelve random runs missed none; 800 draws missed up to 3"


def fuzz_fields() -> set[str]:
    from trtdecode.sampling.parse import KNOWN_KEYS
    from trtdecode.triton_inputs import INPUTS

    return {spec.name for spec in INPUTS} | KNOWN_KEYS
