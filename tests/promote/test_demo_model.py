"""A promotion of the demo model, through the command that CI uses, on a real tritonserver."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from triton_fixtures import RunningServer
from trtdecode.cli import main
from trtdecode.manifest import read_manifest, write_manifest
from trtdecode.promote.cutover import states

pytestmark = [pytest.mark.triton_server, pytest.mark.slow]

#: Sizes for a test; how fast a busy machine is in two turns is not what is tested here.
LIMITS = """
[load]
requests = 6
concurrency = 3
output_tokens = 8
max_ttft_p95_ratio = 20.0
min_tokens_per_s_ratio = 0.05
[leak]
requests = 16
"""


def test_the_demo_model_is_promoted(
    make_server: Callable[..., RunningServer],
    make_repository: Callable[..., Path],
    smollm2_version: Path,
    tmp_path: Path,
) -> None:
    repository = make_repository({"smollm2": ""}, smollm2_version)
    source = tmp_path / "smollm2" / "1"
    shutil.copytree(smollm2_version, source, copy_function=os.link)
    (source / "manifest.json").unlink()  # the link, not what it points to
    write_manifest(source, dataclasses.replace(read_manifest(smollm2_version), source="the next one"))
    (tmp_path / "limits.toml").write_text(LIMITS)
    golden = tmp_path / "golden.jsonl"
    command = ["promote", str(source), "--to", str(repository), "--model", "smollm2", "--who", "the tests", "--ci"]
    command += ["--limits", str(tmp_path / "limits.toml")]
    with make_server(repository) as server:
        before = server.greedy("smollm2", "Paris is", 8)
        assert main([*command, "--record-golden", str(golden)]) == 0
        assert main([*command, "--golden", str(golden), "--server", server.http_address]) == 0
        assert states(server.client, "smollm2")[2] == "READY"
        assert server.greedy("smollm2", "Paris is", 8) == before
    record = json.loads((repository / "smollm2" / "2" / "reports" / "promotion.json").read_text())
    assert (record["passed"], record["who"]) == (True, "the tests")
    assert {gate["gate"]: gate["passed"] for gate in record["gates"]} == dict.fromkeys(
        ("artefacts", "compatibility", "engines", "memory", "parity", "contract", "golden", "load", "leak"), True
    )
