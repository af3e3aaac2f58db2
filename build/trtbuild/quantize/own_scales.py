"""Scales that a checkpoint brings along: what quantisation-aware training, or somebody's calibration, settled.

A checkpoint with static activation scales (`NAME.input_scale` beside `NAME.weight_scale`, as compressed-tensors has
them) was trained or tuned for just these. They travel on the matmul's node and replace ours where an engine's precision
quantises inputs.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from trtbuild.checkpoint import Weights, load
from trtbuild.graph.share import Size, share_of

Float32 = npt.NDArray[np.float32]

INPUT_SCALE = "trtbuild.input_scale"
WEIGHT_SCALES = "trtbuild.weight_scales"


def scales_of(weights: Weights, names: Sequence[str], nums_out: Sequence[Size]) -> dict[str, str]:
    """Node metadata for the layers `names` over one input, merged into one matmul; empty where not all have scales.

    Layers that share an input share its codes, so the largest of their input scales holds for all.
    """
    stored = [f"{name}.input_scale" for name in names]
    if not all(name in weights for name in stored):
        return {}
    if any(f"{name}.input_zero_point" in weights for name in names):  # TensorRT's matmuls take no inputs with one
        return {}
    inputs = [load(weights, name).reshape(-1) for name in stored]
    metadata = {INPUT_SCALE: _encode(np.max(np.concatenate(inputs), keepdims=True))}
    rows = [_row_scales(weights, name, num_out) for name, num_out in zip(names, nums_out, strict=True)]
    if all(len(one) for one in rows):
        joined = np.concatenate(rows)
        metadata[WEIGHT_SCALES] = _encode(joined[:1] if (joined == joined[0]).all() else joined)
    return metadata


def input_scale(nodes: Sequence[ir.Node]) -> float | None:
    """The input scale that matmuls over one input were made for; None where one of them has none."""
    found = [node.metadata_props.get(INPUT_SCALE) for node in nodes]
    values = [float(_decode(text)[0]) for text in found if text is not None]
    return max(values) if values and len(values) == len(found) else None


def weight_scales(node: ir.Node, num_rows: int) -> Float32 | None:
    """One scale an output channel [num_rows]; None where the checkpoint has none."""
    text = node.metadata_props.get(WEIGHT_SCALES)
    return None if text is None else np.broadcast_to(_decode(text), (num_rows,)).copy()


def _row_scales(weights: Weights, name: str, num_out: Size) -> Float32:
    """One a row of the rank's share; empty where they are missing or finer than a row."""
    stored = f"{name}.weight_scale"
    share = share_of(num_out)
    scales = load(weights, stored).reshape(-1) if stored in weights else np.empty(0, np.float32)
    if scales.size not in (1, share.full):
        return np.empty(0, np.float32)
    full = np.broadcast_to(scales, (share.full,))
    return np.concatenate([full[begin:end] for begin, end in share.ranges])


def _encode(values: Float32) -> str:
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()


def _decode(text: str) -> Float32:
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32)
