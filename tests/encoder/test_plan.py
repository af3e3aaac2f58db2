from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from trtdecode.encoder.plan import plan_runs


def test_like_lengths_run_together_within_the_budget() -> None:
    # Sorted: 2, 3, 3 (3 x 3 tokens), then 8 + 8 (16), and 20 is over the budget: alone.
    assert plan_runs([8, 3, 20, 2, 8, 3], 16) == [[3, 1, 5], [0, 4], [2]]


def test_one_text_and_none() -> None:
    assert plan_runs([5], 1) == [[0]]
    assert plan_runs([], 16) == []


@given(st.lists(st.integers(1, 40), max_size=50), st.integers(1, 100))
def test_each_place_once_and_padding_within_the_budget(lengths: list[int], max_tokens: int) -> None:
    runs = plan_runs(lengths, max_tokens)
    assert sorted(place for run in runs for place in run) == list(range(len(lengths)))
    for run in runs:
        assert len(run) == 1 or len(run) * max(lengths[place] for place in run) <= max_tokens
