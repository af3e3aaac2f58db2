"""The deployment files against the schemas of those who read them: Kubernetes, compose, GitHub, GitLab, PromQL."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
VERSIONS = ("1.30", "1.37")  # the oldest that is still run, and the newest known here


def objects() -> list[dict[str, Any]]:
    """Every Kubernetes object; the kustomization is kustomize's own and has no schema there."""
    texts = [path.read_text() for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    return [document for document in documents if document["kind"] != "Kustomization"]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_object(version: str) -> None:
    kinds = []
    for document in objects():
        kubernetes_validate.validate(document, version, strict=True)
        kinds.append(document["kind"])
    assert sorted(set(kinds)) == ["Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget", "Service"]


def test_a_misspelt_field_or_a_wrong_type_is_found() -> None:
    deployment = next(document for document in objects() if document["kind"] == "Deployment")
    for change in ({"replcas": 2}, {"replicas": "two"}):
        wrong = copy.deepcopy(deployment)
        wrong["spec"] |= change
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def kustomized() -> list[dict[str, Any]]:
    """What `kustomize build` makes of the base. kustomize itself is in no package index that the tests use, so the
    three fields that the base has are done here, as kustomize's reference documents them, and no other is accepted."""
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    assert kustomization.pop("apiVersion") == "kustomize.config.k8s.io/v1beta1"
    assert kustomization.pop("kind") == "Kustomization"
    assert kustomization.keys() == {"namespace", "labels", "resources"}
    built = []
    for name in kustomization["resources"]:
        for document in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()):
            document["metadata"]["namespace"] = kustomization["namespace"]
            for entry in kustomization["labels"]:
                assert entry.keys() == {"pairs"}, "includeSelectors changes selectors: that is not done here"
                document["metadata"].setdefault("labels", {}).update(entry["pairs"])
            built.append(document)
    return built


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_what_kustomize_builds(version: str) -> None:
    built = kustomized()
    for document in built:
        kubernetes_validate.validate(document, version, strict=True)
        assert document["metadata"]["namespace"] == "trtdecode"
        assert document["metadata"]["labels"]["app.kubernetes.io/part-of"] == "trtdecode"
    # kustomize refuses two objects of one kind and name; a file of the folder that it does not name is not applied.
    ids = [(document["kind"], document["metadata"]["name"]) for document in built]
    assert len(set(ids)) == len(ids)
    assert sorted(ids) == sorted((document["kind"], document["metadata"]["name"]) for document in objects())


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("compose-spec", "docker/compose.yml"),
        ("github-workflows", "ci/github.yml"),
        ("gitlab-ci", "ci/gitlab.yml"),
    ],
)
def test_compose_and_workflows_have_their_form(schema: str, file: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, str(DEPLOY / file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def adapter_rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "prometheus" / "adapter.yml").read_text())["rules"]
    return rules


def test_the_adapter_offers_what_the_autoscaler_asks_for() -> None:
    autoscaler = next(document for document in objects() if document["kind"] == "HorizontalPodAutoscaler")
    asked = {metric["pods"]["metric"]["name"] for metric in autoscaler["spec"]["metrics"]}
    assert {rule["name"]["as"] for rule in adapter_rules()} == asked


def test_every_expression_is_promql() -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    expressions = [rule["expr"] for group in groups for rule in group["rules"]]
    for rule in adapter_rules():
        query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'pod="a"').replace("<<.GroupBy>>", "pod")
        assert "<<" not in query
        expressions += [rule["seriesQuery"], query]
    assert len(expressions) > 12
    for expression in expressions:
        promql_parser.parse(expression)
    with pytest.raises(ValueError, match=r"\w"):
        promql_parser.parse(re.sub(r"\)", "", expressions[0], count=1))
