"""GPTQ checkpoints (AutoGPTQ, GPTQModel): `qweight`, `qzeros`, `scales`, `g_idx`.

qweight i32 [in * bits / 32, out] and qzeros i32 [groups, out * bits / 32] are packed low bits first; scales are
[groups, out]. The older `gptq` format stores zero - 1, `gptq_v2` stores zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.base import Float32
from trtbuild.checkpoint.grouped_codes import GroupedCodes
from trtbuild.checkpoint.quantized import RawTensors, checked_scales, unpack_bits, unsupported

BITS = (2, 4, 8)
V1, V2 = "gptq", "gptq_v2"


class GptqScheme:
    """See `Scheme`.

    Args:
        settings: the config's `quantization_config`.

    Raises:
        CheckpointError: bits or format that cannot be read.
    """

    def __init__(self, tensors: RawTensors, settings: Mapping[str, Any], source: Path) -> None:
        self._tensors = tensors
        self._source = source
        self.bits: int = int(settings.get("bits", 0))
        self._format = settings.get("checkpoint_format") or V1
        self._symmetric = bool(settings.get("sym", True))
        if self.bits not in BITS:
            raise unsupported(source, f"GPTQ with bits {self.bits}", ", ".join(map(str, BITS)))
        if self._format not in (V1, V2):
            raise unsupported(source, f"GPTQ checkpoint_format {self._format!r}", f"{V1}, {V2}")

    def holds(self, stem: str) -> bool:
        return f"{stem}.qweight" in self._tensors

    def shape(self, stem: str) -> tuple[int, ...]:
        packed_rows, num_out = self._tensors.raw(f"{stem}.qweight").shape
        return num_out, packed_rows * 32 // self.bits

    def values(self, stem: str) -> Float32:
        return self.codes(stem).dequantize()

    def codes(self, stem: str) -> GroupedCodes:
        codes = unpack_bits(self._tensors.raw(f"{stem}.qweight"), self.bits, axis=0).T
        scales = checked_scales(self._tensors.raw(f"{stem}.scales"), f"{stem}.scales", self._source)
        zeros = self._zeros(stem)
        if zeros.shape != scales.shape or scales.shape[1] != codes.shape[0]:
            raise CheckpointError(
                f"{self._source}: {stem!r} has codes {codes.shape}, scales {scales.shape} and zeros {zeros.shape}, "
                "which do not fit together; the checkpoint is damaged"
            )
        order = self._column_order(stem, codes.shape[1], scales.shape[0])
        ordered = codes if order is None else codes[:, order]
        return GroupedCodes(
            np.ascontiguousarray(ordered),
            np.ascontiguousarray(scales.T),
            np.ascontiguousarray(zeros.T),
            self.bits,
            order,
        )

    def _zeros(self, stem: str) -> npt.NDArray[np.uint8]:
        """uint8 [groups, out]: the zero points themselves."""
        stored = unpack_bits(self._tensors.raw(f"{stem}.qzeros"), self.bits, axis=1)
        offset = self._symmetric_offset(stem, stored) if self._symmetric else int(self._format == V1)
        # Adding 1 to the largest code is a zero of 0 that its writer let wrap around.
        return (stored + np.uint8(offset)) & np.uint8((1 << self.bits) - 1)

    def _symmetric_offset(self, stem: str, stored: npt.NDArray[np.uint8]) -> int:
        """What to add to stored zeros. Symmetric ones are the middle of the range: that tells the two formats apart
        by themselves, and some files carry the wrong label."""
        middle = 1 << (self.bits - 1)
        for offset in (0, 1):
            if (stored == middle - offset).all():
                return offset
        raise CheckpointError(
            f"{self._source}: {stem}.qzeros are not all {middle} (or {middle - 1} in the older format), though the "
            "config says sym; correct `sym` in its quantization_config"
        )

    def _column_order(self, stem: str, num_in: int, num_groups: int) -> npt.NDArray[np.int64] | None:
        """The columns group by group (act-order), or None where they are so already."""
        if f"{stem}.g_idx" not in self._tensors:
            return None
        groups = self._tensors.raw(f"{stem}.g_idx").astype(np.int64)
        group_size = num_in // num_groups
        if (groups == np.arange(num_in) // group_size).all():
            return None
        if len(groups) != num_in or (np.bincount(groups, minlength=num_groups) != group_size).any():
            raise CheckpointError(
                f"{self._source}: {stem}.g_idx does not put {group_size} of {num_in} channels into each of "
                f"{num_groups} groups; the checkpoint is damaged"
            )
        return np.argsort(groups, kind="stable")
