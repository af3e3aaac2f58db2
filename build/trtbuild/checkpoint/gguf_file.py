"""Reads one GGUF file (version 2 or 3): metadata, the tensor table, and tensors on demand as float32.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package dequantises the blocks; its
reader is not used, because it maps the whole file and takes seconds for a vocabulary.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.base import Float32, check_finite, chunk_rows
from trtbuild.checkpoint.gguf_codes import READERS
from trtbuild.checkpoint.grouped_codes import GroupedCodes

DEFAULT_ALIGNMENT = 32
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies. `shape` is row-major: the reverse of the order in the file."""

    type_id: int
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file


class GgufFile:
    """One file's metadata, and its tensors on demand.

    Attributes:
        metadata: key -> int, float, bool, str or a list of one of these.
        entries: tensor name -> entry.

    Raises:
        CheckpointError: on opening: not GGUF, truncated, or a tensor reaches past the end of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._size = path.stat().st_size
            with path.open("rb") as file:
                self.metadata, self.entries = self._read_header(file)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error})") from error
        except (struct.error, UnicodeDecodeError, OverflowError) as error:
            raise CheckpointError(f"{path}: header is damaged or truncated ({error}); get the file again") from error
        for name, entry in self.entries.items():
            self._check_extent(name, entry)

    def type_name(self, name: str) -> str:
        """The block type as ggml names it ("Q4_1"), or its number when unknown."""
        type_id = self.entries[name].type_id
        try:
            return str(gguf.GGMLQuantizationType(type_id).name)
        except ValueError:
            return f"type {type_id}"

    def rows(self, name: str) -> Iterator[Float32]:
        """The tensor as float32, in pieces along its first axis. Raises CheckpointError for an unknown block type."""
        entry = self.entries[name]
        quant_type = self._quant_type(name, entry)
        row_bytes = self._row_bytes(name, entry)
        with self.path.open("rb") as file:
            for begin, end in chunk_rows(entry.shape):
                file.seek(entry.offset + begin * row_bytes)
                # Blocks never cross a row of the innermost dimension, so a piece is a whole number of blocks.
                raw = np.fromfile(file, np.uint8, count=(end - begin) * row_bytes).reshape(-1, self._inner_bytes(entry))
                values = self._dequantize(raw, quant_type, name)
                yield check_finite(values.reshape(end - begin, *entry.shape[1:]), name, self.path)

    def codes(self, name: str) -> GroupedCodes | None:
        """A matrix as the integer codes it is stored in; None for types without (see gguf_codes.py)."""
        entry = self.entries[name]
        read = READERS.get(self.type_name(name))
        if read is None or len(entry.shape) != 2:
            return None
        block, block_bytes = gguf.GGML_QUANT_SIZES[self._quant_type(name, entry)]
        num_rows, num_blocks = entry.shape[0], entry.shape[1] // block
        with self.path.open("rb") as file:
            file.seek(entry.offset)
            raw = np.fromfile(file, np.uint8, count=num_rows * num_blocks * block_bytes)
        codes = read(raw.reshape(num_rows, num_blocks, block_bytes))
        check_finite(codes.scales, name, self.path)
        if codes.zeros is not None:
            check_finite(np.asarray(codes.zeros, np.float32), name, self.path)
        return codes

    def _dequantize(self, raw: np.ndarray[Any, np.dtype[np.uint8]], quant_type: Any, name: str) -> Float32:
        if quant_type == gguf.GGMLQuantizationType.F16:
            return raw.view(np.float16).astype(np.float32)
        if quant_type == gguf.GGMLQuantizationType.F32:
            return raw.view(np.float32)
        try:
            values: Float32 = gguf.dequantize(raw, quant_type)
        except NotImplementedError as error:
            raise self._unsupported(name) from error
        return values

    def _quant_type(self, name: str, entry: TensorEntry) -> Any:
        try:
            return gguf.GGMLQuantizationType(entry.type_id)
        except ValueError:
            raise self._unsupported(name) from None

    def _unsupported(self, name: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: tensor {name!r} has block type {self.type_name(name)}, which cannot be read; "
            "use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 or a k-quant (Q2_K to Q6_K)"
        )

    def _inner_bytes(self, entry: TensorEntry) -> int:
        block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(entry.type_id)]
        return int((entry.shape[-1] if entry.shape else 1) // block * block_bytes)

    def _row_bytes(self, name: str, entry: TensorEntry) -> int:
        """Bytes of one index of the first axis."""
        if len(entry.shape) <= 1:
            block, block_bytes = gguf.GGML_QUANT_SIZES[self._quant_type(name, entry)]
            if block != 1:
                raise CheckpointError(f"{self.path}: tensor {name!r} is a vector in blocks of {block}; file is damaged")
            return int(block_bytes)
        return math.prod(entry.shape[1:-1]) * self._inner_bytes(entry)

    def _check_extent(self, name: str, entry: TensorEntry) -> None:
        try:
            block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(entry.type_id)]
        except ValueError:
            return  # reported with its name if and when it is read
        if entry.shape and entry.shape[-1] % block:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has rows of {entry.shape[-1]} values, not a multiple of its block of "
                f"{block}; the file is damaged"
            )
        end = entry.offset + math.prod(entry.shape) // block * block_bytes
        if end > self._size:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} ends at byte {end} of a file of {self._size}: "
                "the file is truncated, get it again"
            )

    def _read_header(self, file: BinaryIO) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
        magic = file.read(4)
        if magic != b"GGUF":
            raise CheckpointError(f"{self.path}: starts with {magic!r}, not b'GGUF'; this is not a GGUF file")
        (version,) = _unpack(file, "<I")
        if version not in (2, 3):
            raise CheckpointError(f"{self.path}: GGUF version {version}; versions 2 and 3 (little-endian) can be read")
        num_tensors, num_keys = _unpack(file, "<QQ")
        metadata = {}
        for _ in range(num_keys):
            key = self._read_string(file)
            (kind,) = _unpack(file, "<I")
            metadata[key] = self._read_value(file, kind)
        raw = [self._read_entry(file) for _ in range(num_tensors)]
        alignment = int(metadata.get("general.alignment", DEFAULT_ALIGNMENT))
        begin = -(-file.tell() // alignment) * alignment
        return metadata, {name: TensorEntry(kind, shape, begin + offset) for name, kind, shape, offset in raw}

    def _read_entry(self, file: BinaryIO) -> tuple[str, int, tuple[int, ...], int]:
        name = self._read_string(file)
        (num_dims,) = _unpack(file, "<I")
        if num_dims > 8:
            raise CheckpointError(f"{self.path}: tensor {name!r} has {num_dims} dimensions; the header is damaged")
        dims = _unpack(file, f"<{num_dims}Q")
        type_id, offset = _unpack(file, "<IQ")
        return name, type_id, tuple(reversed(dims)), offset

    def _read_value(self, file: BinaryIO, kind: int) -> Any:
        if kind == _STRING:
            return self._read_string(file)
        if kind == _ARRAY:
            item_kind, count = _unpack(file, "<IQ")
            if count > self._size:
                raise CheckpointError(f"{self.path}: a metadata array of {count} items; the header is damaged")
            if item_kind in _SCALARS:
                code = _SCALARS[item_kind]
                return np.frombuffer(_read(file, struct.calcsize(code) * count), np.dtype(code)).tolist()
            return [self._read_value(file, item_kind) for _ in range(count)]
        if kind not in _SCALARS:
            raise CheckpointError(f"{self.path}: metadata value of unknown type {kind}; the header is damaged")
        return _unpack(file, _SCALARS[kind])[0]

    def _read_string(self, file: BinaryIO) -> str:
        (length,) = _unpack(file, "<Q")
        if length > self._size:
            raise CheckpointError(f"{self.path}: a string of {length} bytes; the header is damaged")
        return _read(file, length).decode("utf-8")


def _read(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise struct.error(f"wanted {count} bytes, the file ended after {len(data)}")
    return data


def _unpack(file: BinaryIO, code: str) -> tuple[Any, ...]:
    return struct.unpack(code, _read(file, struct.calcsize(code)))
