"""How the bench talks to a peer: a process of its own, in a venv of its own, that answers JSON lines.

A request line is `{"prompts": [[ids], ...], "num_tokens": [n, ...]}`: decode all prompts at once, greedily, EOS
ignored, n tokens each. The answer is `{"seconds": s, "num_tokens": total}`, or `{"error": text}`. The first line a
peer writes describes it. The standard library alone: a peer's venv holds nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

Generate = Callable[[list[list[int]], list[int]], int]  # (prompts, num_tokens of each) -> tokens generated in all


def answer(description: dict[str, str], generate: Generate) -> None:
    """Reads requests until the input ends. Everything else a library prints goes to the error stream."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    print(json.dumps(description), file=replies)
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        try:
            num_tokens = generate(request["prompts"], request["num_tokens"])
        except Exception as error:  # the bench reports it beside the figures of the others
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=replies)
            continue
        print(json.dumps({"seconds": time.perf_counter() - start, "num_tokens": num_tokens}), file=replies)
