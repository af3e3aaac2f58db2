"""Rows of 4-bit constants, which may begin in the middle of a byte."""

from __future__ import annotations

import numpy as np
import openvino
import pytest
from openvino import opset13
from trtdecode.executor.openvino_rewrite import _packed_rows


def packed(codes: np.ndarray) -> np.ndarray:
    """Two a byte, the first in the low half."""
    flat = np.append(codes.reshape(-1), np.zeros(codes.size % 2, np.uint8))
    return flat[0::2] | (flat[1::2] << 4)


@pytest.mark.parametrize("width", [4, 3, 1])
@pytest.mark.parametrize(("begin", "end"), [(0, 5), (1, 4), (2, 3), (3, 6)])
def test_rows(width: int, begin: int, end: int) -> None:
    codes = np.random.default_rng(width).integers(0, 16, (6, width), dtype=np.uint8)
    whole = openvino.Tensor(openvino.Type.u4, openvino.Shape([6, width]))
    whole.data.reshape(-1)[:] = packed(codes)
    rows = _packed_rows(opset13.constant(whole), begin, end)
    wanted = packed(codes[begin:end])
    got = rows.data.reshape(-1).copy()
    if codes[begin:end].size % 2:
        got[-1] &= 0xF  # the half that holds no value
    np.testing.assert_array_equal(got, wanted)
