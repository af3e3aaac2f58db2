"""The random numbers: Random123's known answers, and what sampling needs of them."""

from __future__ import annotations

import itertools

import pytest
from trtdecode.sampling.philox import philox4x32, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_random123(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert philox4x32(counter, key) == words


def test_draws_are_multiples_of_two_to_the_minus_53_in_the_half_open_interval() -> None:
    for seed, index, position in itertools.product([0, 1, 2**63, 2**64 - 1], range(3), range(50)):
        u = uniform(seed, index, position)
        assert 0.0 <= u < 1.0
        assert (u * 2**53).is_integer()


def test_every_part_of_the_key_matters() -> None:
    keys = itertools.product([0, 1, 2**32, 2**63], range(4), range(64))
    assert len({uniform(*key) for key in keys}) == 4 * 4 * 64


def test_frozen_value() -> None:
    """Changing this changes every seeded answer that a user has on file."""
    assert uniform(42, 0, 10) == 0.5246256639390305


def test_draws_are_uniform() -> None:
    """Chi-square over 64 bins, 6,400 draws: 63 degrees of freedom, 110 is the 99.98 % point."""
    counts = [0] * 64
    for position in range(6400):
        counts[int(uniform(7, 0, position) * 64)] += 1
    assert sum((count - 100) ** 2 / 100 for count in counts) < 110
