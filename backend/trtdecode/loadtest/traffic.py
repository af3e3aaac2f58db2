"""What a load test sends, decided before it starts: seeded, and the same again from a recorded trace.

A `Shot` is one request. Closed loop: workers take shots in order, one after another. Open loop: each shot leaves at its
`at`, whatever the server does. Turns of a conversation wait for the turn before and carry the whole dialogue so far.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtdecode.errors import ConfigError

#: Frequent short words: with the usual vocabularies about one token each.
_FREQUENT = (
    "the of and to in is it that was for on are as with his they at be this from have or by one had not but what "
    "all were when we there can an your which their said if do will each about how up out them then she many some "
    "so these would other into has more her two like him see time could no make than first been its who now "
    "people my made over did down only way find use may water long little very after words called just where most "
    "know get through back much before go good new write our used me man too any day same right look think also "
    "around another came come work three word must because does part even place well such here take why things "
    "help put years different away again off went old number great tell men say small every found still between "
    "name should home big give air line set own under read last never us left end along while might next sound "
    "below saw something thought both few those always looked show large often together asked house world going "
    "want school important until form food keep children "
)
WORDS = tuple(_FREQUENT.split())


@dataclass(frozen=True, slots=True)
class Shot:
    """One request of a load test."""

    at: float  # seconds after the start; only the open loop looks at it
    prompt: str
    max_tokens: int
    cancel_after: float | None = None  # seconds after sending; None: runs to its end
    conversation: int = -1  # -1: on its own
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What to generate. Lengths in words of the prompt and tokens of the answer."""

    num_requests: int = 64
    prompt_words: int = 64
    output_tokens: int = 64
    poisson_lengths: bool = False  # lengths are Poisson with those means, at least 1
    shared_prefix_words: int = 0  # the same words before every prompt
    turns: int = 1  # requests of one conversation
    cancel_fraction: float = 0.0
    cancel_after: float = 0.5
    rate: float = 0.0  # requests a second; 0: closed loop
    burst: float = 0.0  # this much more in the middle third: 0.3 is +30 %
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_requests", "prompt_words", "output_tokens", "turns"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; must be at least 1")
        for name in ("shared_prefix_words", "cancel_after", "rate", "burst"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; must not be negative")
        if not 0 <= self.cancel_fraction <= 1:
            raise ConfigError(f"cancel_fraction is {self.cancel_fraction}; must be in [0, 1]")


def generate(traffic: Traffic) -> list[Shot]:
    """The shots of a traffic description: equal seeds give equal lists."""
    rng = np.random.default_rng(traffic.seed)
    prefix = _words(rng, traffic.shared_prefix_words)
    times = _arrivals(rng, traffic)
    shots = []
    for index in range(traffic.num_requests):
        prompt_words, output_tokens = traffic.prompt_words, traffic.output_tokens
        if traffic.poisson_lengths:
            prompt_words = max(1, int(rng.poisson(prompt_words)))
            output_tokens = max(1, int(rng.poisson(output_tokens)))
        cancelled = rng.random() < traffic.cancel_fraction
        conversation, turn = divmod(index, traffic.turns)
        words = _words(rng, prompt_words)
        shots.append(
            Shot(
                at=times[index],
                prompt=" ".join(prefix + words if turn == 0 else words),
                max_tokens=output_tokens,
                cancel_after=float(rng.uniform(0, traffic.cancel_after)) if cancelled else None,
                conversation=conversation if traffic.turns > 1 else -1,
                turn=turn,
            )
        )
    return shots


def write_trace(path: Path, shots: Iterable[Shot]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(dataclasses.asdict(shot)) + "\n" for shot in shots), "utf-8")


def read_trace(path: Path) -> list[Shot]:
    """The shots of a JSONL trace.

    Raises:
        ConfigError: naming file and line of what is not a shot.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: not readable as a trace ({error})") from error
    shots = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            shots.append(Shot(**json.loads(line)))
        except (json.JSONDecodeError, TypeError) as error:
            allowed = ", ".join(field.name for field in dataclasses.fields(Shot))
            raise ConfigError(
                f"{path}:{number}: not a request ({error}); an object with {allowed} is expected"
            ) from error
    if not shots:
        raise ConfigError(f"{path}: holds no request")
    return shots


def _words(rng: np.random.Generator, count: int) -> list[str]:
    return [WORDS[i] for i in rng.integers(0, len(WORDS), count)]


def _arrivals(rng: np.random.Generator, traffic: Traffic) -> Sequence[float]:
    """Poisson arrivals; the middle third of the requests comes `burst` faster."""
    if not traffic.rate:
        return [0.0] * traffic.num_requests
    rates = np.full(traffic.num_requests, float(traffic.rate))
    third = traffic.num_requests // 3
    rates[third : 2 * third] *= 1 + traffic.burst
    times = np.cumsum(rng.exponential(1.0, traffic.num_requests) / rates)
    return [float(time) for time in times - times[0]]
