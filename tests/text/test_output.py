"""Stop strings over streamed text, hold-back, include and exclude (cases C05 and C07)."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trtdecode.text.detokenizer import Detokenizer
from trtdecode.text.output import TextOutput
from trtdecode.text.stop_strings import StopStrings

WORDS = ["one", " two", " three", " four", " five"]


def text_output(pieces: list[str], stops: list[str], **options: bool | int) -> TextOutput:
    """Token i is pieces[i]."""
    return TextOutput(
        Detokenizer(lambda token_id, _first: pieces[token_id].encode()),
        stops=StopStrings(stops) if stops else None,
        **options,  # type: ignore[arg-type]
    )


def run(output: TextOutput, num_tokens: int, chunk: int = 1) -> tuple[list[str], bool]:
    """All deltas, and whether a stop was met."""
    deltas = []
    for begin in range(0, num_tokens, chunk):
        text, stopped = output.push(range(begin, min(begin + chunk, num_tokens)))
        deltas.append(text)
        if stopped:
            return deltas, True
    return [*deltas, output.flush()], False


@pytest.mark.parametrize("chunk", [1, 2, 5])
@pytest.mark.parametrize(("include", "text"), [(False, "one "), (True, "one two three fo")])
def test_stop_across_token_borders(chunk: int, include: bool, text: str) -> None:
    deltas, stopped = run(text_output(WORDS, ["two three fo"], include_stop=include), 5, chunk)
    assert stopped
    assert "".join(deltas) == text


def test_only_what_may_become_a_stop_is_held_back() -> None:
    deltas, stopped = run(text_output(WORDS, ["two three fix"]), 5)
    assert deltas == ["one", " ", "", "two three four", " five", ""]
    assert not stopped


def test_held_text_is_released_at_the_end() -> None:
    assert run(text_output(["a", "b"], ["bc"]), 2) == (["a", "", "b"], False)


@pytest.mark.parametrize(
    ("stops", "text"),
    [([","], "red"), ([",", "."], "red"), (["."], "red, green"), ([], "red, green. blue"), (["blue"], "red, green. ")],
)
def test_one_or_several_stops(stops: list[str], text: str) -> None:
    deltas, _ = run(text_output(["red", ",", " green", ".", " blue"], stops), 5)
    assert "".join(deltas) == text


def test_first_to_end_wins_then_the_longest() -> None:
    assert "".join(run(text_output(["xabcd"], ["abcd", "b"]), 1)[0]) == "xa"
    assert "".join(run(text_output(["xabcd"], ["bc", "abc", "c"]), 1)[0]) == "x"


def test_overlapping_prefix_is_not_lost() -> None:
    """After "aab" fails to start at the first a, the match starts one later."""
    assert "".join(run(text_output(["a", "a", "a", "b"], ["aab"]), 4)[0]) == "a"


def test_no_stop_ends_within_min_tokens() -> None:
    assert "".join(run(text_output(list("a.b.c"), ["."], min_tokens=3), 5)[0]) == "a.b"


def test_text_of_the_stop_token_is_left_out_unless_included() -> None:
    pieces = ["hi", "<eos>"]
    assert run(text_output(pieces, [], stop_token_ids=frozenset({1})), 2) == (["hi", "", ""], False)
    included = text_output(pieces, [], stop_token_ids=frozenset({1}), include_stop=True)
    assert run(included, 2) == (["hi", "<eos>", ""], False)


def test_stop_token_before_min_tokens_is_text() -> None:
    output = text_output(["<eos>"] * 3, [], stop_token_ids=frozenset({0, 1, 2}), min_tokens=3)
    assert run(output, 3)[0] == ["<eos>", "<eos>", "", ""]


def test_stop_with_characters_of_several_bytes() -> None:
    pieces = [b"caf", b"\xc3", b"\xa9", b"!"]
    output = TextOutput(Detokenizer(lambda token_id, _first: pieces[token_id]), stops=StopStrings(["é"]))
    assert run(output, 4) == (["caf", "", ""], True)


def test_nothing_may_be_pushed_after_a_stop() -> None:
    output = text_output(["a."], ["."])
    assert output.push([0]) == ("a", True)
    with pytest.raises(AssertionError):
        output.push([0])


def reference(text: str, stops: list[str], include: bool) -> tuple[str, bool]:
    """By definition: the earliest end of any stop; of those that end there, the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end if include else end - max(map(len, ending))], True
    return text, False


@settings(deadline=None)
@given(
    st.lists(st.text("ab.", max_size=4), max_size=12),
    st.lists(st.text("ab.", min_size=1, max_size=5), min_size=1, max_size=4),
    st.booleans(),
    st.integers(1, 4),
)
def test_every_cut_gives_the_definition(pieces: list[str], stops: list[str], include: bool, chunk: int) -> None:
    deltas, stopped = run(text_output(pieces, stops, include_stop=include), len(pieces), chunk)
    assert ("".join(deltas), stopped) == reference("".join(pieces), stops, include)


@settings(deadline=None)
@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=5))
def test_hold_back_is_the_longest_possible_beginning(text: str, stops: list[str]) -> None:
    tails = [text[begin:] for begin in range(len(text))]
    held = [len(tail) for tail in tails if any(stop.startswith(tail) and stop != tail for stop in stops)]
    proper = StopStrings(stops).num_held(text)
    assert proper >= max(held, default=0)
    assert proper == 0 or any(stop.startswith(text[len(text) - proper :]) for stop in stops)


def test_thousands_of_long_stops_cost_little() -> None:
    """2,000 stops of 200 characters that nearly match everywhere."""
    stops = ["a" * 199 + chr(0x4E00 + index) for index in range(2000)]
    output = text_output(["a"], stops)
    begin = time.perf_counter()
    for _ in range(500):
        output.push([0])
    assert (time.perf_counter() - begin) / 500 < 0.02, "comparing every stop takes 40 ms"
