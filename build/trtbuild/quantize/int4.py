"""INT4 weights, symmetric, one scale a group of input channels; activations stay float.

Round to nearest is the floor; `awq_scales` moves precision to the input channels that carry large activations
(AWQ, https://arxiv.org/abs/2306.00978, section 3.2: s = mean|x|^a, a by search), and gptq.py corrects errors column
by column.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MIN_CODE, MAX_CODE = -8, 7
GROUP_SIZES = (128, 64, 32)  # preferred first; a group must divide the number of input channels

Float32 = npt.NDArray[np.float32]

SEARCH_ROWS, SEARCH_OUTPUTS = 128, 768  # of inputs and weights, in AWQ's search
CHUNK_ROWS = 256  # of weights at a time, which then stay in the processor's cache from one pass over them to the next


class Int4Groups(NamedTuple):
    """Quantised rows."""

    codes: npt.NDArray[np.int8]  # [rows, columns], in -8 .. 7
    scales: Float32  # [rows, columns / group size]; never zero, never NaN


def group_size_for(num_columns: int) -> int | None:
    """The largest of 128, 64 and 32 that makes two or more whole groups of the input channels; None where none does.

    One single group is no choice: TensorRT-RTX 1.7 then dequantises the weight in a kernel of its own in every step
    instead of inside the matmul.
    """
    return next((size for size in GROUP_SIZES if num_columns % size == 0 and num_columns > size), None)


def group_scales(weights: Float32, group_size: int) -> Float32:
    """Scales [rows, columns / group size] that put each group's largest magnitude at code 7 (or -8, if negative)."""
    groups = weights.reshape(weights.shape[0], -1, group_size)
    scales = np.maximum(groups.max(axis=2) / np.float32(MAX_CODE), groups.min(axis=2) / np.float32(MIN_CODE))
    return np.where(scales < np.finfo(np.float32).tiny, np.float32(1.0), scales).astype(np.float32)


def quantize_groups(weights: Float32, group_size: int) -> Int4Groups:
    """Round to nearest of finite [rows, columns]."""
    scales = group_scales(weights, group_size)
    groups = weights.reshape(*scales.shape, group_size)
    codes = np.clip(np.rint(groups / scales[:, :, None]), MIN_CODE, MAX_CODE)
    return Int4Groups(codes.astype(np.int8).reshape(weights.shape), scales)


def dequantize_groups(quantized: Int4Groups) -> Float32:
    """The float32 weights that the codes stand for."""
    groups = quantized.codes.astype(np.float32).reshape(*quantized.scales.shape, -1)
    return np.asarray((groups * quantized.scales[:, :, None]).reshape(quantized.codes.shape), np.float32)


def awq_scales(weights: Float32, inputs: Float32, group_size: int, num_steps: int = 10) -> Float32:
    """Per-channel factors s for W' = W s, x' = x / s that minimise the error of x W^T over sampled inputs.

    Args:
        weights: [out, in].
        inputs: [rows, in], what enters the matmul, sampled.
        num_steps: exponents tried between 0 (round to nearest) and 1.

    Returns:
        s, f32[in], all positive; ones where nothing beats round to nearest.
    """
    magnitudes = np.abs(inputs).mean(axis=0)
    if not magnitudes.any():
        return np.ones(weights.shape[1], np.float32)
    floor = magnitudes[magnitudes > 0].min()
    magnitudes = np.maximum(magnitudes, floor)
    # An average over that many tokens and output channels ranks ten candidates as surely as one over all.
    inputs, weights = _spread(inputs, SEARCH_ROWS), _spread(weights, SEARCH_OUTPUTS)
    candidates = [_centred(magnitudes ** np.float32(step / num_steps)) for step in range(num_steps)]
    scaled_inputs = [inputs / scales for scales in candidates]
    errors = np.zeros(num_steps)
    for begin in range(0, len(weights), CHUNK_ROWS):
        columns = np.ascontiguousarray(weights[begin : begin + CHUNK_ROWS].T)
        for step, scales in enumerate(candidates):
            difference = scaled_inputs[step] @ _rounding_errors(columns * scales[:, None], group_size)
            errors[step] += np.vdot(difference, difference)
    return candidates[int(np.argmin(errors))]


def _centred(scales: Float32) -> Float32:
    """Centred on 1, as in AWQ's code: only ratios matter."""
    return np.asarray(scales / np.sqrt(scales.max() * scales.min()), np.float32)


def _rounding_errors(columns: Float32, group_size: int) -> Float32:
    """What `quantize_groups` adds to each weight of [in, out], in as few passes as it takes: groups lie along the first
    axis, so that each is over long rows."""
    groups = columns.reshape(-1, group_size, columns.shape[1])
    scales = np.maximum(groups.max(axis=1) / np.float32(MAX_CODE), groups.min(axis=1) / np.float32(MIN_CODE))
    scales = np.maximum(scales, np.finfo(np.float32).tiny)[:, None, :]
    rounded: Float32 = groups / scales
    np.rint(rounded, out=rounded)
    rounded *= scales
    rounded -= groups
    return rounded.reshape(columns.shape)


def _spread(rows: Float32, most: int) -> Float32:
    """At most `most` rows, evenly spread."""
    return rows[:: -(-len(rows) // most)] if len(rows) > most else rows
