"""Reads one .safetensors file: an 8-byte header length, a JSON header, raw little-endian tensors.

Format: https://huggingface.co/docs/safetensors (8 bytes u64 N, N bytes of JSON, data). Read with plain file reads
instead of a memory map, so that the pages of a large file never count as the importer's memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.base import Float32, check_finite, chunk_rows

#: The format's own limit on the header.
MAX_HEADER_BYTES = 100_000_000

#: Types whose values are weights by themselves. Others (integers, 8-bit floats) need scales and a reader of their own.
FLOAT_TYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies in its file."""

    type_name: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    num_bytes: int


#: Types that only readers of quantised formats ask for (`raw`).
STORED_TYPES: dict[str, np.dtype[Any]] = {
    **FLOAT_TYPES,
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}


class SafetensorsFile:
    """One file's header and its tensors on demand.

    Raises:
        CheckpointError: on opening: not readable, header damaged, or data shorter than the header promises.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = _read_header(path)

    def rows(self, name: str) -> Iterator[Float32]:
        """The tensor as float32, in pieces along its first axis."""
        entry = self.entries[name]
        dtype = FLOAT_TYPES.get(entry.type_name)
        if dtype is None:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has type {entry.type_name}; plain weights must be one of "
                f"{', '.join(FLOAT_TYPES)}: convert the checkpoint to one of these"
            )
        row_items = math.prod(entry.shape[1:])
        with self.path.open("rb") as file:
            for begin, end in chunk_rows(entry.shape):
                shape = (end - begin, *entry.shape[1:]) if entry.shape else ()
                file.seek(entry.offset + begin * row_items * dtype.itemsize)
                values = np.fromfile(file, dtype, count=math.prod(shape)).reshape(shape)
                yield check_finite(values.astype(np.float32, copy=False), name, self.path)

    def raw(self, name: str) -> npt.NDArray[Any]:
        """A whole tensor in its own dtype. Raises CheckpointError for a type without a numpy equivalent."""
        entry = self.entries[name]
        dtype = STORED_TYPES.get(entry.type_name)
        if dtype is None:
            raise CheckpointError(f"{self.path}: tensor {name!r} has type {entry.type_name}, which cannot be read")
        with self.path.open("rb") as file:
            file.seek(entry.offset)
            return np.fromfile(file, dtype, count=math.prod(entry.shape)).reshape(entry.shape)


def _read_header(path: Path) -> dict[str, TensorEntry]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if not 0 < header_bytes <= min(MAX_HEADER_BYTES, size - 8):
                raise CheckpointError(
                    f"{path}: header of {header_bytes} bytes in a file of {size}; not a safetensors file, or truncated"
                )
            header = json.loads(file.read(header_bytes))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: header is not JSON ({error}); not a safetensors file, or damaged") from error
    begin = 8 + header_bytes
    return {name: _entry(path, name, raw, begin, size) for name, raw in header.items() if name != "__metadata__"}


def _entry(path: Path, name: str, raw: Any, data_begin: int, file_size: int) -> TensorEntry:
    try:
        first, last = raw["data_offsets"]
        entry = TensorEntry(raw["dtype"], tuple(raw["shape"]), data_begin + first, last - first)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: header entry of tensor {name!r} is damaged ({error})") from error
    if not data_begin <= entry.offset <= entry.offset + entry.num_bytes <= file_size:
        raise CheckpointError(
            f"{path}: tensor {name!r} ends at byte {entry.offset + entry.num_bytes} of a file of {file_size}: "
            "the file is truncated, get it again"
        )
    dtype = STORED_TYPES.get(entry.type_name)
    if dtype is not None and math.prod(entry.shape) * dtype.itemsize != entry.num_bytes:
        raise CheckpointError(
            f"{path}: tensor {name!r} of type {entry.type_name} and shape {list(entry.shape)} has "
            f"{entry.num_bytes} bytes; the header is damaged"
        )
    return entry
