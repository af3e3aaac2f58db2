"""The external data of one ONNX graph, written tensor by tensor while the graph is authored."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

#: Tensors start on a cache line, so that a memory-mapped file can be read in place.
ALIGNMENT = 64
_COPY_BYTES = 16 << 20


class WeightFile:
    """Appends tensors to `path`. Use as a context manager; leaving it flushes to disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("wb")

    def append(self, name: str, shape: tuple[int, ...], pieces: Iterable[npt.NDArray[Any]]) -> ir.ExternalTensor:
        """Writes one tensor given in pieces along its first axis (one dtype, C order) and returns a reference to it."""
        dtype: np.dtype[Any] | None = None
        offset = self._align()
        for piece in pieces:
            assert dtype in (None, piece.dtype), f"{name}: pieces of {dtype} and {piece.dtype}"
            dtype = piece.dtype
            np.ascontiguousarray(piece).tofile(self._file)
        assert dtype is not None, f"{name}: no pieces"
        return self._reference(name, shape, ir.DataType.from_numpy(dtype), offset, math.prod(shape) * dtype.itemsize)

    def append_four_bit(self, name: str, codes: npt.NDArray[Any]) -> ir.ExternalTensor:
        """Writes int8 or uint8 codes that fit in 4 bits, two a byte with the first in the low half, as ONNX does."""
        offset = self._align()
        halves = codes.reshape(-1, 2).view(np.uint8) & np.uint8(0xF)
        (halves[:, 0] | (halves[:, 1] << 4)).tofile(self._file)
        kind = ir.DataType.INT4 if codes.dtype == np.int8 else ir.DataType.UINT4
        return self._reference(name, codes.shape, kind, offset, codes.size // 2)

    def append_copy(self, tensor: ir.ExternalTensor) -> ir.ExternalTensor:
        """Copies the bytes of a tensor that lies in another file."""
        assert tensor.name and tensor.length is not None
        offset = self._align()
        with Path(tensor.path).open("rb") as source:
            source.seek(tensor.offset or 0)
            left = tensor.length
            while left:
                piece = source.read(min(left, _COPY_BYTES))
                assert piece, f"{tensor.path}: ends inside {tensor.name}"
                self._file.write(piece)
                left -= len(piece)
        return self._reference(tensor.name, tuple(tensor.shape.numpy()), tensor.dtype, offset, tensor.length)

    def _align(self) -> int:
        offset = -(-self._file.tell() // ALIGNMENT) * ALIGNMENT
        self._file.seek(offset)
        return offset

    def _reference(
        self, name: str, shape: tuple[int, ...], kind: ir.DataType, offset: int, num_bytes: int
    ) -> ir.ExternalTensor:
        written = self._file.tell() - offset
        assert written == num_bytes, f"{name}: {written} bytes do not make {shape}"
        return ir.ExternalTensor(
            self.path.name, offset, num_bytes, kind, shape=ir.Shape(shape), name=name, base_dir=self.path.parent
        )

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()


def write_model(model: ir.Model, path: Path) -> None:
    """Writes the ONNX file itself, flushed to disk; its large tensors lie in the data file already."""
    with path.open("wb") as file:
        file.write(ir.to_proto(model).SerializeToString())
        file.flush()
        os.fsync(file.fileno())
