"""A checkpoint's own integer codes, made fit for a graph: matrices joined, zero points only where they are needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from trtbuild.checkpoint import Weights
from trtbuild.checkpoint.grouped_codes import Array, GroupedCodes
from trtbuild.graph.share import Share


class DifferentCodes(Exception):
    """Matrices that should become one are stored in codes that cannot be joined. Handled inside the builder."""


def joined_codes(weights: Weights, names: Sequence[str], rows: Sequence[Share], columns: Share) -> GroupedCodes | None:
    """The rank's shares of the matrices `names`, one below the other, in the codes that the checkpoint stores; None
    where none has codes.

    Raises:
        UnsupportedError: a border between ranks cuts a group of columns.
        DifferentCodes: only some have codes, or bits, groups, types or column orders differ.
    """
    stored = [weights.codes(name) for name in names]
    parts = [
        without_middle_zeros(codes).part(share.ranges, columns.ranges, name)
        for name, codes, share in zip(names, stored, rows, strict=True)
        if codes is not None
    ]
    if not parts:
        return None
    first = parts[0]
    if len(parts) < len(names) or not all(_alike(first, part) for part in parts[1:]):
        raise DifferentCodes
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
    if codes.zeros is None or codes.zeros.dtype != np.uint8 or (codes.zeros != middle).any():
        return codes
    signed = (codes.codes.astype(np.int16) - middle).astype(np.int8)
    return dataclasses.replace(codes, codes=signed, zeros=None)


def _alike(one: GroupedCodes, other: GroupedCodes) -> bool:
    return (
        one.bits == other.bits
        and one.codes.dtype == other.codes.dtype
        and one.group_size == other.group_size
        and _dtype(one.zeros) == _dtype(other.zeros)
        and _equal(one.column_order, other.column_order)
    )


def _dtype(array: Array | None) -> np.dtype[Any] | None:
    return None if array is None else array.dtype


def _equal(one: np.ndarray[tuple[int], np.dtype[np.int64]] | None, other: object) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, np.asarray(other))
