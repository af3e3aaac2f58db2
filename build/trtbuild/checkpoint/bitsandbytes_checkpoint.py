"""bitsandbytes 4-bit checkpoints: NF4 and FP4 codes in blocks, their scales possibly quantised again.

`weight` u8 holds two codes a byte, the first in the high half; `absmax` one scale a block; `quant_map` the sixteen
values. With double quantisation `absmax` is u8 codes into `nested_quant_map`, scaled by `nested_absmax` plus an offset.
https://arxiv.org/abs/2305.14314
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.base import Float32
from trtbuild.checkpoint.grouped_codes import GroupedCodes
from trtbuild.checkpoint.quantized import RawTensors, checked_scales, unsupported

KINDS = ("nf4", "fp4")


class BitsandbytesScheme:
    """See `Scheme`. Raises CheckpointError for 8-bit checkpoints, whose outliers need their own kernel."""

    bits: int | None = None

    def __init__(self, tensors: RawTensors, settings: Mapping[str, Any], source: Path) -> None:
        self._tensors = tensors
        self._source = source
        if not settings.get("load_in_4bit"):
            raise unsupported(source, "bitsandbytes without load_in_4bit", "load_in_4bit (nf4, fp4)")

    def holds(self, stem: str) -> bool:
        return f"{stem}.weight.quant_map" in self._tensors

    def shape(self, stem: str) -> tuple[int, ...]:
        return tuple(self._state(stem)["shape"])

    def codes(self, stem: str) -> GroupedCodes | None:
        return None  # the sixteen values are not evenly spaced

    def values(self, stem: str) -> Float32:
        name, state = f"{stem}.weight", self._state(stem)
        packed = self._tensors.raw(name).reshape(-1)
        codes = np.stack([packed >> 4, packed & 0xF], axis=-1).reshape(-1)
        scales = self._scales(name, state)
        if len(codes) != int(np.prod(state["shape"])) or len(scales) * state["blocksize"] < len(codes):
            raise CheckpointError(
                f"{self._source}: {name!r} has {len(codes)} codes for shape {state['shape']}; damaged"
            )
        table = checked_scales(self._tensors.raw(f"{name}.quant_map"), f"{name}.quant_map", self._source)
        spread = np.repeat(scales, state["blocksize"])[: len(codes)]
        return np.asarray((table[codes] * spread).reshape(state["shape"]), np.float32)

    def _scales(self, name: str, state: Mapping[str, Any]) -> Float32:
        """f32, one a block."""
        stored = self._tensors.raw(f"{name}.absmax")
        if f"{name}.nested_absmax" not in self._tensors:
            return checked_scales(stored, f"{name}.absmax", self._source)
        nested = checked_scales(self._tensors.raw(f"{name}.nested_absmax"), f"{name}.nested_absmax", self._source)
        table = self._tensors.raw(f"{name}.nested_quant_map").astype(np.float32)
        spread = np.repeat(nested, state["nested_blocksize"])[: stored.size]
        scales = table[stored.reshape(-1)] * spread + np.float32(state["nested_offset"])
        return checked_scales(scales, f"{name}.absmax", self._source)

    def _state(self, stem: str) -> dict[str, Any]:
        for kind in KINDS:
            name = f"{stem}.weight.quant_state.bitsandbytes__{kind}"
            if name in self._tensors:
                try:
                    state: dict[str, Any] = json.loads(self._tensors.raw(name).tobytes())
                except ValueError as error:
                    raise CheckpointError(f"{self._source}: {name!r} is not JSON ({error}); damaged") from error
                return state
        raise CheckpointError(f"{self._source}: {stem}.weight has a quant_map but no quant_state of {', '.join(KINDS)}")
