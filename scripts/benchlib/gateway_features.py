"""What each cache and rule of the gateway adds to a request, and what it saves.

A request goes through a gateway with the feature and through one without it, in pairs of changing order, so that both
see the same minutes of the machine. Differences and ratios are of pairs; their medians and quartiles are printed. What
a feature adds is measured on a model that does nothing, where tenths of a millisecond can be seen; what it saves on
the measured model. The headers prove for every request that the feature did what the row says.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gateway_process import (
    ENCODER,
    IDLE,
    IDLE_AGAIN,
    MEASURED,
    CompletionClient,
    GatewayProcess,
    TimedAnswer,
    gateway_process,
)
from trtdecode.server.launch import TritonServer

ROUTES = f"""
[[rule]]
model = "assistant"
min_prompt_chars = 8000
target = "elsewhere"
[[rule]]
model = "assistant"
callers = ["000000000000"]
target = "elsewhere"
[[rule]]
model = "assistant"
target = "{IDLE}"
[[split]]
model = "ab"
targets = {{ {IDLE} = 0.5, {IDLE_AGAIN} = 0.5 }}
"""
#: Words for prompts that resemble no other.
WORDS = (
    *("harbour", "violin", "glacier", "tax", "pepper", "orbit", "quilt", "lantern", "fungus", "treaty", "saddle"),
    *("prism", "walnut", "canal", "thunder", "ledger", "mosaic", "comet", "vinegar", "trench", "falcon", "ribbon"),
    *("marble", "engine", "pollen", "sonnet", "cactus", "anchor", "velvet", "magnet"),
)
#: Questions and the same in other words: near enough for the semantic cache's threshold.
PARAPHRASES = (
    ("What is the capital of France?", "what is the capital city of France?"),
    ("How do I boil an egg?", "How do I boil eggs?"),
    ("How do I install Python on Windows?", "How can I install Python on Windows?"),
    ("How far away is the moon?", "How far is the moon away?"),
)

WARM_UP = 30  # requests before the pairs that count: a new process takes longer for its first
SAVING_WARM_UP = 4

Ask = Callable[[CompletionClient, int], TimedAnswer]
CACHE, MODEL, ROUTE = (f"x-trtdecode-{name}" for name in ("cache", "model", "route"))


@dataclass(frozen=True, slots=True)
class Feature:
    """One row: what the gateway is told, what it is asked, and the header that says that it did it."""

    name: str
    options: tuple[str | Path, ...]
    ask: Ask
    header: str
    begins: str  # the header's value begins so
    ask_without: Ask | None = None  # default the same request
    is_saving: bool = False  # on the measured model, in fewer pairs


@dataclass(slots=True)
class Pairs:
    """Seconds of a request without a feature and with it."""

    without: list[float]
    having: list[float]
    added_cpu: float | None = None  # CPU seconds of the gateway a request, with less without

    def figures(self) -> dict[str, Any]:
        """Medians in milliseconds; of what is added also the quartiles; the median ratio of pairs; CPU microseconds."""
        added = 1000 * (np.array(self.having) - np.array(self.without))
        low, middle, high = np.percentile(added, (25, 50, 75))
        return {
            "without_ms": 1000 * statistics.median(self.without),
            "with_ms": 1000 * statistics.median(self.having),
            "added_ms": float(middle),
            "added_low_ms": float(low),
            "added_high_ms": float(high),
            "added_cpu_us": None if self.added_cpu is None else 1e6 * self.added_cpu,
            "ratio": float(np.median(np.array(self.having) / np.array(self.without))),
            "pairs": len(added),
        }


def features(folder: Path, tokens: int) -> list[Feature]:
    """All rows but those of replicas. Writes the rules into `folder`."""
    routes = folder / "routes.toml"
    routes.write_text(ROUTES)
    split_log = ("--routes", routes, "--split-log", folder / "split.jsonl")
    exact = ("--response-cache", "1024")
    semantic = ("--semantic-cache-model", ENCODER)

    def question(client: CompletionClient, number: int, words: int = 0) -> TimedAnswer:
        return client.ask(PARAPHRASES[number % 4][words], model=MEASURED, max_tokens=tokens)

    def again(client: CompletionClient, number: int) -> TimedAnswer:
        question(client, number)
        return question(client, number)

    def in_other_words(client: CompletionClient, number: int) -> TimedAnswer:
        question(client, number)
        return question(client, number, 1)

    def named(model: str) -> Ask:
        return lambda client, number: client.ask(unlike(number), model=model, user=f"user{number}")

    direct = named(IDLE)
    return [
        Feature("no feature: the noise", (), direct, MODEL, IDLE),
        Feature("exact cache, miss", exact, direct, CACHE, "miss"),
        Feature("semantic cache, miss", semantic, direct, CACHE, "miss"),
        Feature("routing by rule", ("--routes", routes), named("assistant"), ROUTE, "rule 3", direct),
        Feature("A/B split", ("--routes", routes), named("ab"), ROUTE, "split", direct),
        Feature("A/B split, logged side by side", split_log, named("ab"), ROUTE, "split", direct),
        Feature("exact cache, hit", exact, again, CACHE, "hit", question, is_saving=True),
        Feature("semantic cache, hit", semantic, in_other_words, CACHE, "semantic", question, is_saving=True),
    ]


def unlike(number: int) -> str:
    """A prompt that no other number has and that means nothing alike; shorter than a block of the KV cache."""
    return " ".join(np.random.default_rng(number).choice(WORDS, 5).tolist())


def measure_features(
    repository: Path, server: TritonServer, plain: GatewayProcess, *, pairs: int, saving_pairs: int, tokens: int
) -> dict[str, dict[str, Any]]:
    """Figures by feature, of gateways in front of one server; `plain` is the one without a feature."""
    rows = {}
    for feature in features(repository.parent, tokens):
        with gateway_process(repository, [server], feature.options) as gateway:
            count = saving_pairs if feature.is_saving else pairs
            rows[feature.name] = measure_pairs(feature, plain, gateway, count).figures()
    client = CompletionClient(plain)
    client.embed(ENCODER, unlike(0))
    times = [client.embed(ENCODER, unlike(number)) for number in range(pairs)]
    client.close()
    rows["semantic cache, miss"]["embedding_call_ms"] = 1000 * statistics.median(times)
    return rows


def measure_pairs(feature: Feature, plain: GatewayProcess, gateway: GatewayProcess, count: int) -> Pairs:
    found = Pairs([], [])
    without, having = CompletionClient(plain), CompletionClient(gateway)
    cpu = [0.0, 0.0]
    warm_up = SAVING_WARM_UP if feature.is_saving else WARM_UP
    for number in range(-warm_up, count):
        if number == 0:
            cpu = [plain.cpu_seconds(), gateway.cpu_seconds()]
        asks = [(without, feature.ask_without or feature.ask, found.without), (having, feature.ask, found.having)]
        for client, ask, times in asks if number % 2 else asks[::-1]:
            answer = ask(client, number + warm_up)
            if client is having and not answer.headers.get(feature.header, "").startswith(feature.begins):
                raise RuntimeError(f"{feature.name}: {feature.header} is {answer.headers.get(feature.header)!r}")
            if number >= 0:
                times.append(answer.seconds)
    found.added_cpu = (gateway.cpu_seconds() - cpu[1] - plain.cpu_seconds() + cpu[0]) / count
    without.close()
    having.close()
    return found


def feature_table(rows: dict[str, dict[str, Any]]) -> str:
    """Markdown: one line a feature."""
    lines = [
        "| | without ms | with ms | added ms, median (quartiles) | ratio | added CPU us |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        added = f"{row['added_ms']:+.2f} ({row['added_low_ms']:+.2f} to {row['added_high_ms']:+.2f})"
        figures = f"{row['without_ms']:.2f} | {row['with_ms']:.2f} | {added} | {row['ratio']:.3f}"
        cpu = "" if row["added_cpu_us"] is None else f"{row['added_cpu_us']:+.0f}"
        lines.append(f"| {name} | {figures} | {cpu} |")
        if "embedding_call_ms" in row:
            lines.append(f"| of these the embedding call | | {row['embedding_call_ms']:.2f} | | | |")
    return "\n".join(lines)
