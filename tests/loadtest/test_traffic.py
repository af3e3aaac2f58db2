"""Traffic is decided before it is sent: equal seeds, equal requests."""

from pathlib import Path

import numpy as np
import pytest
from trtdecode.errors import ConfigError
from trtdecode.loadtest.traffic import Traffic, generate, read_trace, write_trace


def test_equal_seeds_give_equal_shots_and_other_seeds_do_not() -> None:
    traffic = Traffic(num_requests=20, poisson_lengths=True, rate=5, cancel_fraction=0.5)
    assert generate(traffic) == generate(traffic)
    assert generate(traffic) != generate(
        Traffic(num_requests=20, poisson_lengths=True, rate=5, cancel_fraction=0.5, seed=1)
    )


def test_poisson_lengths_have_the_mean_and_the_spread() -> None:
    shots = generate(Traffic(num_requests=4000, prompt_words=4, output_tokens=256, poisson_lengths=True))
    tokens = np.array([shot.max_tokens for shot in shots])
    assert abs(tokens.mean() - 256) < 1.5  # six standard errors: 16 / sqrt(4000)
    assert abs(tokens.std() - 16) < 1.2
    assert min(len(shot.prompt.split()) for shot in shots) >= 1


def test_a_burst_shortens_the_gaps_of_the_middle_third_alone() -> None:
    times = np.array([shot.at for shot in generate(Traffic(num_requests=9000, rate=10, burst=0.3))])
    gaps = np.diff(times)
    assert gaps[:2999].mean() == pytest.approx(0.1, rel=0.06)
    assert gaps[2999:5999].mean() == pytest.approx(0.1 / 1.3, rel=0.06)
    assert gaps[5999:].mean() == pytest.approx(0.1, rel=0.06)


def test_the_shared_prefix_opens_every_first_turn() -> None:
    shots = generate(Traffic(num_requests=6, prompt_words=2, shared_prefix_words=50, turns=2))
    prefix = shots[0].prompt.split()[:50]
    assert [(shot.conversation, shot.turn) for shot in shots] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    for shot in shots:
        words = shot.prompt.split()
        assert (words[:50] == prefix and len(words) == 52) if shot.turn == 0 else len(words) == 2


def test_a_trace_comes_back_as_it_was(tmp_path: Path) -> None:
    shots = generate(Traffic(num_requests=5, cancel_fraction=0.5, rate=3))
    write_trace(tmp_path / "trace.jsonl", shots)
    assert read_trace(tmp_path / "trace.jsonl") == shots


@pytest.mark.parametrize("line", ["{", '{"at": 0}', '{"at": 0, "prompt": "", "max_tokens": 1, "extra": 2}', "[]"])
def test_a_wrong_trace_names_file_and_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"at": 0, "prompt": "x", "max_tokens": 1}\n' + line + "\n")
    with pytest.raises(ConfigError, match=r"trace\.jsonl:2: not a request"):
        read_trace(file)


@pytest.mark.parametrize(
    ("field", "value"), [("num_requests", 0), ("turns", 0), ("rate", -1.0), ("burst", -0.1), ("cancel_fraction", 1.5)]
)
def test_wrong_sizes_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value}"):
        Traffic(**{field: value})
