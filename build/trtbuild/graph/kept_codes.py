"""A checkpoint's own integer codes, made fit for a graph: matrices joined, zero points only where they are needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from trtbuild.checkpoint import Weights
from trtbuild.checkpoint.grouped_codes import GroupedCodes


def joined_codes(weights: Weights, names: Sequence[str]) -> GroupedCodes | None:
    """The matrices `names` one below the other in the codes that the checkpoint stores.

    None where one has no codes, or where bits, groups, types or column orders differ: then nothing can be shared.
    """
    parts = []
    for name in names:
        codes = weights.codes(name)
        if codes is None:
            return None
        parts.append(without_middle_zeros(codes))
    first = parts[0]
    if not all(_alike(first, part) for part in parts[1:]):
        return None
    zeros = None if first.zeros is None else np.concatenate([part.zeros for part in parts if part.zeros is not None])
    return dataclasses.replace(
        first,
        codes=np.concatenate([part.codes for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        zeros=zeros,
    )


def without_middle_zeros(codes: GroupedCodes) -> GroupedCodes:
    """Unsigned codes around the middle of their range become signed ones around 0, which need no zero points."""
    middle = 1 << (codes.bits - 1)
    if codes.zeros is None or codes.codes.dtype != np.uint8 or (codes.zeros != middle).any():
        return codes
    signed = (codes.codes.astype(np.int16) - middle).astype(np.int8)
    return dataclasses.replace(codes, codes=signed, zeros=None)


def _alike(one: GroupedCodes, other: GroupedCodes) -> bool:
    return (
        one.bits == other.bits
        and one.codes.dtype == other.codes.dtype
        and one.group_size == other.group_size
        and (one.zeros is None) == (other.zeros is None)
        and _equal(one.column_order, other.column_order)
    )


def _equal(one: np.ndarray[tuple[int], np.dtype[np.int64]] | None, other: object) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, np.asarray(other))
