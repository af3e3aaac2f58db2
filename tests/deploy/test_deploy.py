"""The deployment files: their form, and every name in them that must exist elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from trtdecode.cli.app import build_app
from trtdecode.metrics import METRICS
from trtdecode.triton_metrics import RESTARTS
from typer.main import get_command

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SUFFIXES = ("_bucket", "_count", "_sum")
TRITONS_OWN = {"nv_inference_request_success", "nv_inference_request_failure"}


def exposed() -> set[str]:
    """Every series name that the server exposes."""
    names = set(TRITONS_OWN)
    for spec in (*METRICS, RESTARTS):
        names |= {spec.name + suffix for suffix in SUFFIXES} if spec.kind == "histogram" else {spec.name}
    return names


def series_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:trtdecode|nv)_[a-z0-9_]+", text))


def expressions() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found += [variable["query"] for variable in dashboard["templating"]["list"]]
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    adapter = yaml.safe_load((DEPLOY / "prometheus" / "adapter.yml").read_text())["rules"]
    found += [rule[key] for rule in adapter for key in ("seriesQuery", "metricsQuery")]
    return found + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def test_every_metric_in_dashboard_and_alerts_is_exposed() -> None:
    used = set().union(*map(series_in, expressions()))
    assert len(used) > 15
    assert used <= exposed()


def test_every_alert_says_what_to_do() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    assert {"TimeToFirstTokenHigh", "QueueGrowing", "KvCacheNearlyFull", "ErrorRateHigh", "Preempting"} <= {
        rule["alert"] for rule in rules
    }
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"]


def test_labels_in_expressions_are_those_of_the_metrics() -> None:
    labels = {spec.label for spec in METRICS if spec.label} | {"model", "le", "<<.GroupBy>>"}
    for expression in expressions():
        for group in re.findall(r"\bby \(([^)]*)\)", expression):
            assert {label.strip() for label in group.split(",")} <= labels, expression


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def documents() -> list[dict[str, object]]:
    return [
        document
        for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"), reverse=True)
        for document in yaml.safe_load_all(path.read_text())
    ]


def test_kubernetes_objects_refer_to_each_other() -> None:
    found = {(document["kind"], document.get("metadata", {}).get("name")): document for document in documents()}
    kustomization = next(document for document in documents() if document["kind"] == "Kustomization")
    files = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files
    for kind in ("Service", "PodDisruptionBudget"):
        selector = found[kind, "trtdecode-server"]["spec"]["selector"]
        labels = found["Deployment", "trtdecode-server"]["spec"]["template"]["metadata"]["labels"]
        assert (selector.get("matchLabels") or selector).items() <= labels.items()
    target = found["HorizontalPodAutoscaler", "trtdecode-server"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) in found


def test_the_pod_outlives_its_drain_and_has_shared_memory() -> None:
    deployment = next(document for document in documents() if document["kind"] == "Deployment")
    assert deployment["metadata"]["name"] == "trtdecode-server"
    spec = deployment["spec"]["template"]["spec"]
    container = spec["containers"][0]
    command = " ".join(container["lifecycle"]["preStop"]["exec"]["command"])
    wait, drain = int(re.search(r"sleep (\d+)", command)[1]), int(re.search(r"--timeout (\d+)", command)[1])
    assert spec["terminationGracePeriodSeconds"] > wait + drain
    memory = next(volume for volume in spec["volumes"] if volume["name"] == "shm")
    assert memory["emptyDir"]["medium"] == "Memory"
    assert {probe for probe in container if probe.endswith("Probe")} == {
        "startupProbe",
        "readinessProbe",
        "livenessProbe",
    }


def commands() -> list[list[str]]:
    """Every trtdecode command line in the deployment files."""
    found = [
        container["args"]
        for d in documents()
        if d["kind"] == "Deployment"
        for container in d["spec"]["template"]["spec"]["containers"]
    ]
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yml").read_text())
    found += [service["command"] for service in compose["services"].values() if "command" in service]
    found.append(json.loads(re.search(r"^CMD (.*)$", (DEPLOY / "docker" / "Dockerfile").read_text(), re.MULTILINE)[1]))
    found.append(["drain", "--timeout", "60"])
    return found


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_every_command_line_parses(arguments: list[str]) -> None:
    group = get_command(build_app())
    command = group.commands[arguments[0]]
    context = command.make_context(arguments[0], list(arguments[1:]), resilient_parsing=False)
    assert context.params


def test_the_image_copies_what_the_package_is_built_from() -> None:
    root = DEPLOY.parent
    for source in re.findall(r"^COPY (.+) \S+$", (DEPLOY / "docker" / "Dockerfile").read_text(), re.MULTILINE):
        for name in source.split():
            assert (root / name).exists(), name
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yml").read_text())
    assert compose["services"]["server"]["shm_size"] == "1g"
