"""compressed-tensors checkpoints (llm-compressor): FP8, INT8 and packed INT4/INT8 weights with their scales.

`float-quantized`: weight F8_E4M3; `int-quantized`: weight I8; `pack-quantized`: weight_packed i32 [out, in * bits / 32]
of codes plus 2^(bits-1). weight_scale is [1], [out, 1] or [out, groups]. Static scales of activations (`input_scale`)
are read where the graph is written (quantize/own_scales.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.base import Float32
from trtbuild.checkpoint.grouped_codes import GroupedCodes
from trtbuild.checkpoint.quantized import Array, RawTensors, checked_scales, unpack_bits, unsupported

FORMATS = ("float-quantized", "int-quantized", "pack-quantized", "naive-quantized")


class CompressedTensorsScheme:
    """See `Scheme`. Raises CheckpointError for other formats, naming those known."""

    def __init__(self, tensors: RawTensors, settings: Mapping[str, Any], source: Path) -> None:
        self._tensors = tensors
        self._source = source
        kind = settings.get("format")
        if kind not in FORMATS:
            raise unsupported(source, f"compressed-tensors format {kind!r}", ", ".join(FORMATS))
        self._bits = {_bits(group) for group in (settings.get("config_groups") or {}).values()}
        self.bits: int | None = None if kind == "float-quantized" else max(self._bits, default=8)
        if kind == "pack-quantized" and not (len(self._bits) == 1 and self._bits <= {4, 8}):
            raise unsupported(source, f"pack-quantized with bits {sorted(self._bits)}", "4 or 8, the same everywhere")

    def holds(self, stem: str) -> bool:
        return f"{stem}.weight_scale" in self._tensors

    def shape(self, stem: str) -> tuple[int, ...]:
        if self._packed(stem):
            return tuple(int(size) for size in self._tensors.raw(f"{stem}.weight_shape"))
        return tuple(self._tensors.raw(f"{stem}.weight").shape)

    def values(self, stem: str) -> Float32:
        codes = self.codes(stem)
        if codes is not None:
            return codes.dequantize()
        stored = self._tensors.raw(f"{stem}.weight").astype(np.float32)
        return np.asarray(stored * self._scales(stem, stored.shape[0]), np.float32)

    def codes(self, stem: str) -> GroupedCodes | None:
        stored, bits = self._integers(stem)
        if stored is None:
            return None
        scales = self._scales(stem, stored.shape[0])
        if stored.shape[1] % scales.shape[1]:
            raise CheckpointError(
                f"{self._source}: {stem}.weight_scale has {scales.shape[1]} groups for {stored.shape[1]} columns; "
                "the checkpoint is damaged"
            )
        return GroupedCodes(stored, scales, self._zeros(stem, scales), bits)

    def _integers(self, stem: str) -> tuple[Array | None, int]:
        """int8 [out, in] and their bits; None for FP8."""
        if self._packed(stem):
            (bits,) = self._bits
            num_columns = self.shape(stem)[1]
            offset = unpack_bits(self._tensors.raw(f"{stem}.weight_packed"), bits, axis=1)[:, :num_columns]
            return _signed(offset, bits), bits
        stored = self._tensors.raw(f"{stem}.weight")
        return (stored, 8) if stored.dtype == np.int8 else (None, 0)

    def _packed(self, stem: str) -> bool:
        return f"{stem}.weight_packed" in self._tensors

    def _scales(self, stem: str, num_rows: int) -> Float32:
        """f32 [out, groups]."""
        name = f"{stem}.weight_scale"
        scales = checked_scales(self._tensors.raw(name), name, self._source)
        columns = scales.reshape(1, 1) if scales.size == 1 else scales.reshape(scales.shape[0], -1)
        return np.ascontiguousarray(np.broadcast_to(columns, (num_rows, columns.shape[1])))

    def _zeros(self, stem: str, scales: Float32) -> Array | None:
        name = f"{stem}.weight_zero_point"
        if name not in self._tensors:
            return None
        zeros = self._tensors.raw(name)
        if self._packed(stem) and zeros.dtype == np.int32:
            (bits,) = self._bits
            zeros = _signed(unpack_bits(zeros, bits, axis=0)[: scales.shape[0]], bits)
        return np.broadcast_to(zeros.reshape(zeros.shape[0], -1), scales.shape).astype(np.int8)


def _signed(codes: Array, bits: int) -> Array:
    """int8 codes from unsigned ones that are stored with the middle of their range added."""
    return (codes.astype(np.int16) - (1 << (bits - 1))).astype(np.int8)


def _bits(group: Mapping[str, Any]) -> int:
    return int((group.get("weights") or {}).get("num_bits") or 0)
