"""What a soak sends: requests of every kind, drawn from a seed, and when their client leaves."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Job:
    """One request."""

    prompt: str
    sampling: dict[str, Any]
    way: str  # "generate", "generate_stream" or "grpc"; in process all are the same
    leaves_after: int | None = None  # events after which the client leaves; 0: right after sending; None: stays
    is_bad: bool = False  # must be refused
    is_late: bool = field(default=False)  # has a deadline that it may miss

    def body(self) -> dict[str, Any]:
        """The JSON body for Triton's generate end points."""
        sampling = json.dumps(self.sampling)
        given = {"text_input": self.prompt, "sampling_parameters": sampling, "exclude_input_in_output": True}
        return {**given, "return_logprobs": True, "return_finish_reason": True, "stream": self.way != "generate"}


def jobs(seed: int, count: int) -> Iterator[Job]:
    """`count` jobs. A third share a beginning, a third are cancelled, one in fifty is refused."""
    rng = random.Random(seed)
    beginnings = ["".join(rng.choices("abcdefgh ", k=rng.randint(40, 300))) for _ in range(4)]
    for _ in range(count):
        prompt = rng.choice(beginnings) if rng.random() < 0.33 else ""
        prompt += "".join(rng.choices("abcxyz!~. \u00e9\U0001f336", k=rng.randint(1, 60)))
        # One in ten is long, so that sequences outgrow the pool together.
        lengths = [1, *(rng.randint(1, 16) for _ in range(4)), *(rng.randint(1, 80) for _ in range(4)), 400]
        sampling: dict[str, Any] = {"max_tokens": rng.choice(lengths)}
        sampling["temperature"] = rng.choice((0.0, 0.0, 0.8, 1.5))
        options: list[dict[str, Any]] = [
            {"n": rng.randint(2, 3)},
            {"seed": rng.getrandbits(40)},
            {"logprobs": rng.randint(0, 3)},
            {"prompt_logprobs": 0},
            {"stop": [" four", "zz"]},
            {"repetition_penalty": 1.2, "frequency_penalty": 0.5},
            {"top_k": 5, "top_p": 0.9, "min_p": 0.01},
            {"ignore_eos": True, "min_tokens": 1},
            {"guided_json": SCHEMA},
            {"priority": rng.randint(-2, 2)},
        ]
        for option in rng.sample(options, k=rng.choice((0, 0, 1, 2))):
            sampling |= option
        is_bad = rng.random() < 0.02
        if is_bad:
            sampling |= rng.choice(({"temperature": -1}, {"top_p": 2}, {"nonsense": 1}, {"max_tokens": 10**6}))
        leaves = rng.choice((0, 1, rng.randint(1, 30))) if rng.random() < 0.33 else None
        way = rng.choice(("generate", "generate_stream", "generate_stream", "grpc"))
        yield Job(prompt, sampling, way, leaves, is_bad)
