"""The documents name what there is: every parameter, tensor and error code, no file that is not there."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from chain_model import cycle_text
from triton_fixtures import RunningServer
from trtdecode.cli import main
from trtdecode.config import ServingConfig
from trtdecode.encoder.tensors import input_specs, output_specs
from trtdecode.errors import WIRE_STATUS
from trtdecode.manifest import ModelSpec
from trtdecode.metrics import METRICS, MetricSpec
from trtdecode.model_config import ENCODER_PARAMETERS
from trtdecode.sampling.params import SamplingParams
from trtdecode.triton_inputs import INPUTS
from trtdecode.triton_metrics import ENCODER_METRICS, RESTARTS
from trtdecode.triton_outputs import OUTPUTS

ROOT = Path(__file__).resolve().parents[1]
ENCODERS = (ROOT / "docs" / "encoders.md").read_text("utf-8")
SERVING = (ROOT / "docs" / "serving.md").read_text("utf-8")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("field", dataclasses.fields(ServingConfig), ids=lambda field: field.name)
def test_parameter_and_its_default(field: dataclasses.Field[object]) -> None:
    row = re.search(rf"^\| `{field.name}` \| (\S+) \|", SERVING, re.MULTILINE)
    assert row, f"docs/serving.md has no row for parameter {field.name}"
    default = str(field.default).lower() if isinstance(field.default, bool | str) else f"{field.default:g}"
    assert row.group(1) == default


def test_no_parameter_that_is_gone() -> None:
    section = SERVING.split("## Parameters")[1].split("Triton's own fields")[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert documented == {field.name for field in dataclasses.fields(ServingConfig)}


@pytest.mark.parametrize("name", [spec.name for spec in (*INPUTS, *OUTPUTS)])
def test_tensor(name: str) -> None:
    assert f"`{name}`" in SERVING


@pytest.mark.parametrize("task", ["embed", "rerank", "classify"])
def test_tensors_of_encoders(task: str) -> None:
    spec = ModelSpec("bert", 1, 8, 1, 1, 8, 10, 16, (0,), task=task, labels=("a", "b"), score_activation="softmax")
    missing = [t.name for t in (*input_specs(spec), *output_specs(spec)) if f"| `{t.name}` |" not in ENCODERS]
    assert missing == []


def test_parameters_of_encoders() -> None:
    paragraph = re.search(r"^Of the \[parameters\].*?\n\n", ENCODERS, re.DOTALL | re.MULTILINE)
    assert paragraph and set(re.findall(r"`(\w+)`", paragraph[0])) - {"openvino", "torch"} == ENCODER_PARAMETERS


def test_metrics_of_encoders() -> None:
    named = set(re.findall(r"`(trtdecode_\w+)`", ENCODERS))
    assert named == {spec.name for spec in ENCODER_METRICS}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(SamplingParams)])
def test_sampling_parameter(name: str) -> None:
    assert f"`{name}`" in SERVING


@pytest.mark.parametrize("metric", [*METRICS, RESTARTS], ids=lambda metric: metric.name)
def test_metric(metric: MetricSpec) -> None:
    label = f" Label `{metric.label}`." if metric.label else ""
    assert f"| `{metric.name}` | {metric.kind} | {metric.help}{label} |\n" in SERVING


def test_wire_statuses() -> None:
    rows = re.findall(r"^\|[^|]+\| ([A-Z_]+) \| (\d+) \|$", SERVING, re.MULTILINE)
    assert {(status.triton_code, str(status.http_status)) for status in WIRE_STATUS.values()} == set(rows)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_scripts_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    targets += re.findall(r"(?<![\w/.])((?:scripts|docs|tests)/[\w./-]*\w)", text)
    missing = [target for target in targets if not (ROOT / target).exists() and not (document.parent / target).exists()]
    assert missing == []


def test_tree_of_the_readme_exists() -> None:
    tree = (ROOT / "README.md").read_text("utf-8").split("## What lies where")[1].split("```")[1]
    parent, missing = ROOT, []
    for line in tree.strip("\n").splitlines():
        names = re.findall(r"\S+", line[:24])
        if not line.startswith(" "):
            parent = ROOT / names[0]
        missing += [name for name in names if not (ROOT / name).exists() and not (parent / name).exists()]
    assert missing == []


def test_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    named = {
        command
        for document in DOCUMENTS
        for command in re.findall(r"(?:`|^\s*|/)trtdecode ([a-z]+)", document.read_text("utf-8"), re.MULTILINE)
    }
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert [command for command in sorted(named) if f" {command} " not in text] == []


@pytest.mark.triton_server
def test_python_of_the_readme_runs(chain_server: RunningServer) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    program = program.replace("localhost:8001", chain_server.grpc_address).replace('"smollm2"', '"chain"')
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == (cycle_text(32), "")


@pytest.mark.triton_server
def test_curl_of_the_readme_runs(chain_server: RunningServer) -> None:
    (command,) = re.findall(
        r"^curl .*?generate_stream$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    command = command.replace("localhost:8000", chain_server.http_address).replace("/smollm2/", "/chain/")
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    events = [json.loads(line[5:]) for line in result.stdout.splitlines() if line.startswith("data:")]
    assert "".join(event["text_output"] for event in events) == cycle_text(32)
