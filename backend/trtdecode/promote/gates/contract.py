"""Does the candidate keep the contract with its clients, over the real server?"""

from __future__ import annotations

import json
from typing import Any

from trtdecode.promote.gate import CANDIDATE, Context, Gate
from trtdecode.server.client import ServerClient

#: What clients send and read: a candidate without one of them breaks somebody.
INPUTS = ("text_input", "stream", "sampling_parameters", "max_tokens", "exclude_input_in_output")
OUTPUTS = ("text_output", "finish_reason", "num_output_tokens")
PROMPT = "The capital of France is"


def ask(context: Context) -> tuple[bool, str, dict[str, Any]]:
    """A handful of requests, each with one right kind of answer."""
    client = context.server().client
    problems = [problem for check in _CHECKS for problem in check(client, context.limits.contract.timeout_s)]
    if problems:
        return False, "; ".join(problems[:3]), {"problems": problems}
    return True, f"{len(_CHECKS)} kinds of requests are answered as promised", {"checks": len(_CHECKS)}


def _tensors(client: ServerClient, timeout: float) -> list[str]:
    metadata = client.call("GET", f"/v2/models/{CANDIDATE}", timeout_s=timeout).json()
    missing = []
    for kind, wanted in (("inputs", INPUTS), ("outputs", OUTPUTS)):
        names = {tensor["name"] for tensor in metadata.get(kind, [])}
        missing += [f"{kind[:-1]} {name!r} is missing" for name in wanted if name not in names]
    return missing


def _one_answer(client: ServerClient, timeout: float) -> list[str]:
    body = {"text_input": PROMPT, "max_tokens": 6, "temperature": 0.0, "return_num_output_tokens": True}
    answer = client.generate(CANDIDATE, body, timeout)
    if answer.status != 200:
        return [f"/generate answered {answer.status}: {answer.body.decode(errors='replace')[:200]}"]
    count = answer.json().get("num_output_tokens")
    return (
        [] if count is not None and 1 <= int(count) <= 6 else [f"/generate: num_output_tokens is {count}, asked for 6"]
    )


def _stream_is_the_same(client: ServerClient, timeout: float) -> list[str]:
    body = {"text_input": PROMPT, "max_tokens": 12, "temperature": 0.0, "exclude_input_in_output": True}
    whole = client.generate(CANDIDATE, body, timeout)
    if whole.status != 200:
        return [f"/generate answered {whole.status}"]
    events = client.generate_stream(CANDIDATE, {**body, "stream": True}, timeout)
    streamed = "".join(event.get("text_output", "") for event in events)
    expected = whole.json()["text_output"]
    return [] if streamed == expected else [f"streamed text {streamed[:60]!r} is not the whole one {expected[:60]!r}"]


def _bad_input_is_refused(client: ServerClient, timeout: float) -> list[str]:
    problems = []
    for field, value in (("max_tokens", -1), ("temperature", -1.0), ("top_p", 2.0)):
        answer = client.generate(CANDIDATE, {"text_input": PROMPT, field: value}, timeout)
        if answer.status != 400 or field not in answer.body.decode(errors="replace"):
            problems.append(f"{field} {value} is answered with {answer.status}, not with a 400 that names it")
    return problems


def _parameters_in_json(client: ServerClient, timeout: float) -> list[str]:
    sampling = json.dumps({"max_tokens": 3, "temperature": 0.8, "seed": 7, "ignore_eos": True})
    body = {"text_input": PROMPT, "sampling_parameters": sampling, "exclude_input_in_output": True}
    texts = {client.generate(CANDIDATE, body, timeout).body for _ in range(2)}
    return [] if len(texts) == 1 else ["two requests with the same seed are answered differently"]


_CHECKS = (_tensors, _one_answer, _stream_is_the_same, _bad_input_is_refused, _parameters_in_json)
GATE = Gate("contract", ask)
