"""AWQ checkpoints (AutoAWQ, version "gemm"): `qweight` and `qzeros` packed along the output, 4 bits.

qweight i32 [in, out / 8], qzeros i32 [groups, out / 8], scales [groups, out]. The eight nibbles of a word hold the
output channels in the order 0, 2, 4, 6, 1, 3, 5, 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtbuild.checkpoint.base import Float32
from trtbuild.checkpoint.grouped_codes import GroupedCodes
from trtbuild.checkpoint.quantized import RawTensors, checked_scales, unpack_bits, unsupported

BITS = 4
#: Nibble i of a word holds output channel NIBBLE_ORDER[i] of its eight.
NIBBLE_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class AwqScheme:
    """See `Scheme`. Raises CheckpointError for other bits or versions than 4-bit "gemm"."""

    bits: int | None = BITS

    def __init__(self, tensors: RawTensors, settings: Mapping[str, Any], source: Path) -> None:
        self._tensors = tensors
        self._source = source
        bits = settings.get("bits", settings.get("w_bit"))
        version = str(settings.get("version", "gemm")).lower()
        if bits != BITS or version != "gemm":
            raise unsupported(source, f"AWQ with bits {bits}, version {version!r}", '4 bits, version "gemm"')

    def holds(self, stem: str) -> bool:
        return f"{stem}.qweight" in self._tensors

    def shape(self, stem: str) -> tuple[int, ...]:
        num_in, packed_out = self._tensors.raw(f"{stem}.qweight").shape
        return packed_out * 8, num_in

    def values(self, stem: str) -> Float32:
        return self.codes(stem).dequantize()

    def codes(self, stem: str) -> GroupedCodes:
        scales = checked_scales(self._tensors.raw(f"{stem}.scales"), f"{stem}.scales", self._source)
        return GroupedCodes(
            self._unpack(f"{stem}.qweight"),
            np.ascontiguousarray(scales.T),
            self._unpack(f"{stem}.qzeros"),
            BITS,
        )

    def _unpack(self, name: str) -> npt.NDArray[np.uint8]:
        """uint8 [out, rows] of a tensor packed along the output."""
        stored = unpack_bits(self._tensors.raw(name), BITS, axis=1)
        words = stored.reshape(stored.shape[0], -1, len(NIBBLE_ORDER))
        channels = np.empty_like(words)
        channels[:, :, NIBBLE_ORDER] = words
        return np.ascontiguousarray(channels.reshape(stored.shape).T)
