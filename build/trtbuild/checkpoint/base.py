"""What every checkpoint format becomes: named float32 weights in Hugging Face's naming and orientation, the
Hugging Face config as a dictionary, and the tokenizer's files.

Nothing is unpickled, ever. Weights are read in chunks of rows, so an import holds one chunk, not a model.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.grouped_codes import GroupedCodes

Float32 = npt.NDArray[np.float32]

#: Rows are read in pieces of at most this many float32 bytes.
CHUNK_BYTES = 16 << 20


class Weights(Protocol):
    """Lazy access to named tensors. Every method raises CheckpointError naming file and tensor."""

    def names(self) -> list[str]:
        """Names present, in Hugging Face's naming where the format has its own."""
        ...

    def __contains__(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape in Hugging Face's orientation ([out, in] for linear layers)."""
        ...

    def rows(self, name: str) -> Iterator[Float32]:
        """The tensor in order, in pieces along its first axis; each piece is finite and belongs to the caller."""
        ...

    def codes(self, name: str) -> GroupedCodes | None:
        """The integer codes a matrix is stored in, or None where it is stored as floats or in another way."""
        ...

    def common_bits(self) -> int | None:
        """Bits of the codes that most weights are stored in, or None where they are floats."""
        ...


class UnpackedWeights:
    """Weights as floats, whatever codes they are stored in: what reads them quantises anew."""

    def __init__(self, stored: Weights) -> None:
        self._stored = stored

    def names(self) -> list[str]:
        return self._stored.names()

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored.shape(name)

    def rows(self, name: str) -> Iterator[Float32]:
        return self._stored.rows(name)

    def codes(self, name: str) -> None:
        return None

    def common_bits(self) -> None:
        return None


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint."""

    source: str  # for people: what was opened
    config: Mapping[str, Any]  # as in Hugging Face's config.json
    weights: Weights
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)  # file name -> content
    decisions: tuple[str, ...] = ()  # what opening it had to guess, one sentence each


def load(weights: Weights, name: str) -> Float32:
    """A whole tensor as float32. For small tensors; large ones are streamed by `rows`."""
    pieces = list(weights.rows(name))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def chunk_rows(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Half-open row ranges of at most CHUNK_BYTES of float32 each (at least one row)."""
    num_rows = shape[0] if shape else 1
    row_bytes = 4 * int(np.prod(shape[1:], dtype=np.int64)) or 4
    step = max(1, CHUNK_BYTES // row_bytes)
    for begin in range(0, num_rows, step):
        yield begin, min(begin + step, num_rows)


def check_finite(values: Float32, name: str, file: Path) -> Float32:
    """The values, or CheckpointError: one NaN in a weight (or in a stored scale) poisons every answer."""
    if not np.isfinite(values).all():
        raise CheckpointError(
            f"{file}: tensor {name!r} holds NaN or infinite values; the file is damaged, get it again"
        )
    return values


def missing_tensor(name: str, present: list[str], file: Path) -> CheckpointError:
    """The error for a tensor that is not there, naming the closest present ones."""
    close = difflib.get_close_matches(name, present, n=3)
    hint = f"closest present: {', '.join(close)}" if close else f"{len(present)} other tensors are present"
    return CheckpointError(
        f"{file}: tensor {name!r} is missing ({hint}); the checkpoint is incomplete or of another layout"
    )
