"""Checkpoints whose matrices are stored as codes and scales: one wrapper, one scheme a format.

    codes [out, in], one scale (and zero point) a group of a row:   w = (code - zero) * scale

`QuantizedWeights` gives the float32 values that the codes stand for, exactly; a graph may instead keep the codes
themselves (`codes`), so that nothing is quantised twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.base import Float32, Weights, check_finite
from trtbuild.checkpoint.grouped_codes import GroupedCodes

Array = npt.NDArray[Any]


class RawTensors(Protocol):
    """Tensors as stored, besides `Weights`."""

    def raw(self, name: str) -> Array:
        """A whole tensor in its own dtype. Raises CheckpointError naming file and tensor."""
        ...

    def names(self) -> list[str]: ...

    def __contains__(self, name: str) -> bool: ...


class Scheme(Protocol):
    """One format. `stem` is a layer's name without ".weight"."""

    @property
    def bits(self) -> int | None:
        """Of the integer codes; None for FP8 and NF4."""
        ...

    def holds(self, stem: str) -> bool:
        """Whether this layer's weight is stored quantised."""
        ...

    def codes(self, stem: str) -> GroupedCodes | None:
        """Its codes, or None where the format has no integer codes in groups (FP8, NF4)."""
        ...

    def values(self, stem: str) -> Float32:
        """Its float32 weights [out, in]."""
        ...

    def shape(self, stem: str) -> tuple[int, ...]:
        """[out, in]."""
        ...


class QuantizedWeights:
    """See `Weights`: float32 values of whatever is stored quantised, everything else as it is."""

    def __init__(self, plain: Weights, scheme: Scheme, source: Path) -> None:
        self._plain = plain
        self._scheme = scheme
        self._source = source

    def names(self) -> list[str]:
        return self._plain.names()

    def __contains__(self, name: str) -> bool:
        return self._holds(name) or name in self._plain

    def shape(self, name: str) -> tuple[int, ...]:
        return self._scheme.shape(_stem(name)) if self._holds(name) else self._plain.shape(name)

    def rows(self, name: str) -> Iterator[Float32]:
        if self._holds(name):
            yield check_finite(self._scheme.values(_stem(name)), name, self._source)
        else:
            yield from self._plain.rows(name)

    def codes(self, name: str) -> GroupedCodes | None:
        """The stored codes of a matrix, or None where it has none."""
        return self._scheme.codes(_stem(name)) if self._holds(name) else None

    def common_bits(self) -> int | None:
        return self._scheme.bits

    def _holds(self, name: str) -> bool:
        return name.endswith(".weight") and self._scheme.holds(_stem(name))


def _stem(name: str) -> str:
    return name.removesuffix(".weight")


def unpack_bits(words: npt.NDArray[np.int32], bits: int, axis: int) -> npt.NDArray[np.uint8]:
    """Codes of `bits` bits, packed low bits first into 32-bit words along `axis`, as uint8."""
    per_word = 32 // bits
    shifts = np.arange(per_word, dtype=np.uint32) * np.uint32(bits)
    words = np.moveaxis(words.view(np.uint32), axis, -1)
    codes = (words[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    flat = codes.astype(np.uint8).reshape(*words.shape[:-1], -1)
    return np.ascontiguousarray(np.moveaxis(flat, -1, axis))


def checked_scales(scales: Array, name: str, source: Path) -> Float32:
    """Scales as float32; CheckpointError where one is NaN or infinite."""
    return check_finite(np.asarray(scales, np.float32), name, source)


def unsupported(source: Path, what: str, known: str) -> CheckpointError:
    """The error for a variant of a format that is not read."""
    return CheckpointError(f"{source}: {what} cannot be read; known: {known}. Use an unquantised checkpoint")
