"""The random numbers of sampling: Philox4x32-10, a counter-based generator.

A draw is a pure function of (seed, sample index, position). Nothing is advanced, so neither the company a request is
batched with, nor preemption, nor the executor changes its tokens. `uniform` is the reference; the native sampler
repeats it and a test compares the two.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the constants are those of
Random123, whose known answers are in the tests.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words from a 128-bit counter and a 64-bit key, both as 32-bit words, lowest first."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _MASK, (product0 >> 32) ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, sample_index: int, position: int) -> float:
    """The draw for one token: a multiple of 2**-53 in [0, 1).

    Args:
        seed: the request's, in [0, 2**64).
        sample_index: which of `n` samples, in [0, 2**32).
        position: index of the token to be chosen in prompt + output, in [0, 2**32).
    """
    high, low, _, _ = philox4x32((position, sample_index, 0, 0), (seed & _MASK, seed >> 32))
    return ((high >> 5) * 67108864 + (low >> 6)) / 9007199254740992.0
