"""Do golden prompts still give the tokens that somebody once approved?

The file is JSONL, one object a prompt: {"prompt": "...", "max_tokens": 16, "output_ids": [...]}. Record one with
`scripts/promote VERSION --record-golden FILE`, read it, and keep it with the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtdecode.errors import ConfigError
from trtdecode.promote.gate import CANDIDATE, Context, Gate

DEFAULT_PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Water boils at",
    "Once upon a time, in a small village by the sea,",
)


def ask(context: Context) -> tuple[bool, str, dict[str, Any]]:
    """Greedy tokens over the real server, compared one by one."""
    entries = read_golden(context.golden)
    wanted = context.limits.golden.min_prompts
    if len(entries) < wanted:
        return False, f"{context.golden}: {len(entries)} golden prompts, at least {wanted} are wanted", {}
    wrong = []
    for number, entry in enumerate(entries, 1):
        found = greedy_ids(context, entry["prompt"], entry["max_tokens"])
        if found != entry["output_ids"]:
            same = next((i for i, (a, b) in enumerate(zip(found, entry["output_ids"], strict=False)) if a != b), None)
            place = min(len(found), len(entry["output_ids"])) if same is None else same
            wrong.append(f"prompt {number} differs from token {place} on")
    if wrong:
        return False, "; ".join(wrong[:3]), {"wrong": len(wrong), "prompts": len(entries)}
    return True, f"{len(entries)} prompts give the approved tokens", {"prompts": len(entries)}


def read_golden(path: Path) -> list[dict[str, Any]]:
    """Raises ConfigError naming file and line."""
    if not path.is_file():
        raise ConfigError(
            f"{path}: no golden prompts; record them with `scripts/promote VERSION --record-golden {path}`"
        )
    entries = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
            entries.append({name: entry[name] for name in ("prompt", "max_tokens", "output_ids")})
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}:{number}: not a golden prompt ({error})") from error
    return entries


def record_golden(context: Context, path: Path, max_tokens: int = 16) -> int:
    """Writes the candidate's own tokens for the default prompts; returns how many prompts."""
    lines = []
    for prompt in DEFAULT_PROMPTS:
        ids = greedy_ids(context, prompt, max_tokens)
        lines.append(json.dumps({"prompt": prompt, "max_tokens": max_tokens, "output_ids": ids}))
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return len(lines)


def greedy_ids(context: Context, prompt: str, max_tokens: int) -> list[int]:
    """Token ids of a greedy answer. Raises ConfigError when the server refuses the prompt."""
    body = {"text_input": prompt, "max_tokens": max_tokens, "temperature": 0.0, "return_output_ids": True}
    answer = context.server().client.generate(CANDIDATE, body, context.limits.contract.timeout_s)
    if answer.status != 200:
        raise ConfigError(f"golden prompt {prompt!r}: the server answered {answer.status}: {answer.body.decode()}")
    ids = answer.json()["output_ids"]
    return ids if isinstance(ids, list) else [ids]


GATE = Gate("golden", ask)
