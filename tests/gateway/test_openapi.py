"""schemathesis: bodies made from the gateway's own OpenAPI document, right and wrong ones, against the running gateway.

What must hold: no 500, only documented statuses and content types, answers of the documented form, and bodies that the
document forbids are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from gateway_fixtures import Gateway
from hypothesis import HealthCheck, Phase, settings
from trtdecode.gateway.app import create_app
from trtdecode.gateway.settings import GatewaySettings

pytestmark = pytest.mark.triton_server

MODELS = ("chain", "smollm2")


document = schemathesis.openapi.from_dict(create_app(GatewaySettings()).openapi())
#: A body of the documented form may still be refused: a model that is not served, a prompt that does not fit.
EXCLUDED = schemathesis.checks.CHECKS.get_by_names(["positive_data_acceptance"])


def test_the_served_document_is_this_one(gateway: Gateway) -> None:
    assert gateway.client.get("/openapi.json").json() == document.raw_schema


@document.parametrize()
@settings(
    max_examples=8,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_gateway_keeps_its_own_document(case: schemathesis.Case, gateway: Gateway) -> None:
    if case.meta.generation.mode.is_positive and isinstance(case.body, dict):
        case.body = servable(case.body)
    case.call_and_validate(base_url=gateway.url, timeout=30, excluded_checks=EXCLUDED)


def servable(body: dict[str, Any]) -> dict[str, Any]:
    """A body of the documented form that asks a served model for a short answer, so that not all end as 404."""
    body = {**body, "model": MODELS["messages" in body]}
    if "messages" in body:
        body["messages"] = [
            {"content": "Hi", **{k: v for k, v in m.items() if v is not None}} for m in body["messages"]
        ]
    if "prompt" in body:
        body["prompt"] = body["prompt"] or "x"
    if "messages" in body or "prompt" in body:
        body["max_tokens"] = min(body.get("max_tokens") or 3, 3)
        body["n"] = min(body.get("n") or 1, 4)
    return body
