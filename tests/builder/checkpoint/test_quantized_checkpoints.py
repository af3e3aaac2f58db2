"""Quantised checkpoints, bit by bit: what the codes of each format stand for, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from trtbuild.checkpoint import load, open_checkpoint
from trtbuild.checkpoint.quantized import QuantizedWeights, unpack_bits
from trtdecode.errors import CheckpointError


def write(folder: Path, settings: dict[str, Any], tensors: dict[str, np.ndarray]) -> QuantizedWeights:
    """A folder with one quantised checkpoint, opened."""
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    weights = open_checkpoint(folder).weights
    assert isinstance(weights, QuantizedWeights)
    return weights


def pack(codes: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Codes low bits first into int32 words along an axis, one word at a time."""
    moved = np.moveaxis(codes.astype(np.uint64), axis, -1)
    words = moved.reshape(*moved.shape[:-1], -1, 32 // bits)
    packed = sum(words[..., place] << np.uint64(place * bits) for place in range(32 // bits))
    return np.ascontiguousarray(np.moveaxis(packed.astype(np.uint32).view(np.int32), -1, axis))


# -- GPTQ -----------------------------------------------------------------------------------------------------------

CASE_C37 = np.array([[0x0F9A8741]], np.uint32).view(np.int32)
C37_VALUES = [-3.5, -2.0, -0.5, 0.0, 1.0, 0.5, 3.5, -4.0]


def gptq_case(folder: Path, zero: int, settings: dict[str, Any], **changes: np.ndarray) -> QuantizedWeights:
    """Case C37's one column: its tensors are one output wide, which GPTQ cannot pack; eight equal ones are."""
    tensors = {
        "m.qweight": np.repeat(CASE_C37, 8, axis=1),
        "m.qzeros": pack(np.full((1, 8), zero), 4, axis=1),
        "m.scales": np.full((1, 8), 0.5, np.float16),
        **changes,
    }
    return write(folder, {"quant_method": "gptq", "bits": 4, **settings}, tensors)


@pytest.mark.parametrize(
    ("zero", "settings"),
    [
        (7, {"checkpoint_format": "gptq"}),
        (7, {}),
        (7, {"checkpoint_format": "gptq", "sym": False}),
        (8, {"checkpoint_format": "gptq_v2"}),
        (8, {"checkpoint_format": "gptq_v2", "sym": False}),
        (8, {"checkpoint_format": "gptq", "sym": True}),  # the wrong label
        (7, {"checkpoint_format": "gptq_v2", "sym": True}),  # the other wrong label
    ],
)
def test_zero_points_of_both_formats(tmp_path: Path, zero: int, settings: dict[str, Any]) -> None:
    values = load(gptq_case(tmp_path, zero, settings), "m.weight")
    assert values.shape == (8, 8)
    assert all(row.tolist() == C37_VALUES for row in values)


def test_act_order(tmp_path: Path) -> None:
    weights = gptq_case(
        tmp_path,
        7,
        {},
        **{
            "m.qzeros": pack(np.full((2, 8), 7), 4, axis=1),
            "m.scales": np.repeat(np.array([[0.5], [2.0]], np.float16), 8, axis=1),
            "m.g_idx": np.array([1, 0, 1, 0, 0, 1, 0, 1], np.int32),
        },
    )
    wanted = [-14.0, -2.0, -2.0, 0.0, 1.0, 2.0, 3.5, -16.0]
    assert load(weights, "m.weight")[3].tolist() == wanted
    codes = weights.codes("m.weight")
    assert codes is not None
    assert codes.column_order is not None
    assert codes.column_order.tolist() == [1, 3, 4, 6, 0, 2, 5, 7]


def test_zero_of_zero_wraps_in_the_older_format(tmp_path: Path) -> None:
    values = load(gptq_case(tmp_path, 15, {"sym": False}), "m.weight")
    assert values[0].tolist() == [0.5 * code for code in (1, 4, 7, 8, 10, 9, 15, 0)]


def test_symmetric_with_other_zeros_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"m\.qzeros are not all 8 \(or 7 in the older format\)"):
        load(gptq_case(tmp_path, 5, {"sym": True}), "m.weight")


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_every_width_against_plain_arithmetic(tmp_path: Path, bits: int) -> None:
    random = np.random.default_rng(bits)
    codes = random.integers(0, 1 << bits, (64, 32))  # [in, out]
    zeros = random.integers(1, 1 << bits, (2, 32))
    scales = random.uniform(0.1, 1, (2, 32)).astype(np.float16)
    tensors = {"m.qweight": pack(codes, bits, 0), "m.qzeros": pack(zeros - 1, bits, 1), "m.scales": scales}
    settings = {"quant_method": "gptq", "bits": bits, "sym": False}
    values = load(write(tmp_path, settings, tensors), "m.weight")
    group = np.arange(64) // 32
    wanted = (codes - zeros[group]).astype(np.float32) * scales.astype(np.float32)[group]
    np.testing.assert_array_equal(values, wanted.T)


def test_g_idx_that_is_no_grouping(tmp_path: Path) -> None:
    wrong = {"m.g_idx": np.array([0, 0, 0, 0, 0, 0, 0, 1], np.int32)}
    two = {
        "m.qzeros": pack(np.full((2, 8), 7), 4, axis=1),
        "m.scales": np.ones((2, 8), np.float16),
    }
    with pytest.raises(CheckpointError, match=r"m\.g_idx does not put 4 of 8 channels into each of 2 groups"):
        load(gptq_case(tmp_path, 7, {}, **two, **wrong), "m.weight")


# -- AWQ ------------------------------------------------------------------------------------------------------------


def test_awq_nibble_order(tmp_path: Path) -> None:
    """Channel c of eight lies in nibble [0, 4, 1, 5, 2, 6, 3, 7][c]."""
    random = np.random.default_rng(0)
    codes, zeros = random.integers(0, 16, (32, 16)), random.integers(0, 16, (2, 16))  # [in, out], [groups, out]
    scales = random.uniform(0.1, 1, (2, 16)).astype(np.float16)
    place = [0, 4, 1, 5, 2, 6, 3, 7]

    def packed(values: np.ndarray) -> np.ndarray:
        words = np.zeros((len(values), 2), np.uint32)
        for channel in range(16):
            words[:, channel // 8] |= values[:, channel].astype(np.uint32) << np.uint32(4 * place[channel % 8])
        return words.view(np.int32)

    tensors = {"m.qweight": packed(codes), "m.qzeros": packed(zeros), "m.scales": scales}
    weights = write(tmp_path, {"quant_method": "awq", "bits": 4, "version": "gemm"}, tensors)
    group = np.arange(32) // 16
    wanted = (codes - zeros[group]).astype(np.float32) * scales.astype(np.float32)[group]
    np.testing.assert_array_equal(load(weights, "m.weight"), wanted.T)
    assert weights.shape("m.weight") == (16, 32)


# -- compressed-tensors ---------------------------------------------------------------------------------------------


def compressed(kind: str, bits: int = 8) -> dict[str, Any]:
    groups = {"group_0": {"weights": {"num_bits": bits}}}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups}


def test_fp8_weights_and_both_shapes_of_scale(tmp_path: Path) -> None:
    stored = np.array([[448, -1.5, 0.015625], [2, 3.5, -448]], np.float32)
    for name, scale in (("a", np.array([0.5], np.float32)), ("b", np.array([[0.5], [2.0]], np.float32))):
        folder = tmp_path / name
        folder.mkdir()
        tensors = {
            "m.weight": torch.from_numpy(stored).to(torch.float8_e4m3fn),
            "m.weight_scale": torch.from_numpy(scale),
        }
        (folder / "config.json").write_text(json.dumps({"quantization_config": compressed("float-quantized")}))
        safetensors.torch.save_file(tensors, folder / "model.safetensors")
        values = load(open_checkpoint(folder).weights, "m.weight")
        np.testing.assert_array_equal(values, stored * scale.reshape(-1, 1))


def test_int8_weights(tmp_path: Path) -> None:
    codes = np.array([[127, -128, 3], [1, 0, -5]], np.int8)
    tensors = {"m.weight": codes, "m.weight_scale": np.array([[0.5], [2.0]], np.float32)}
    weights = write(tmp_path, compressed("int-quantized"), tensors)
    np.testing.assert_array_equal(load(weights, "m.weight"), [[63.5, -64, 1.5], [2, 0, -10]])
    kept = weights.codes("m.weight")
    assert kept is not None
    assert (kept.bits, kept.group_size) == (8, 3)


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_integers(tmp_path: Path, bits: int) -> None:
    random = np.random.default_rng(bits)
    low, high = -(1 << (bits - 1)), 1 << (bits - 1)
    codes = random.integers(low, high, (6, 64))
    scales = random.uniform(0.1, 1, (6, 2)).astype(ml_dtypes.bfloat16)
    tensors = {
        "m.weight_packed": pack(codes - low, bits, axis=1),
        "m.weight_shape": np.array([6, 64], np.int64),
        "m.weight_scale": scales.astype(np.float32),
    }
    values = load(write(tmp_path, compressed("pack-quantized", bits), tensors), "m.weight")
    wanted = codes.astype(np.float32) * np.repeat(scales.astype(np.float32), 32, axis=1)
    np.testing.assert_array_equal(values, wanted)


# -- bitsandbytes ---------------------------------------------------------------------------------------------------


def nf4_state(**settings: Any) -> np.ndarray:
    return np.frombuffer(json.dumps({"blocksize": 4, "shape": [2, 4], **settings}).encode(), np.uint8)


TABLE = np.linspace(-1, 1, 16).astype(np.float32)
CODES = np.array([[0, 15, 7, 8], [3, 4, 12, 1]])
PACKED = np.array([[0x0F], [0x78], [0x34], [0xC1]], np.uint8)  # the first code is in the high half


def test_nf4(tmp_path: Path) -> None:
    tensors = {
        "m.weight": PACKED,
        "m.weight.absmax": np.array([2.0, 0.5], np.float32),
        "m.weight.quant_map": TABLE,
        "m.weight.quant_state.bitsandbytes__nf4": nf4_state(),
    }
    weights = write(tmp_path, {"quant_method": "bitsandbytes", "load_in_4bit": True}, tensors)
    np.testing.assert_array_equal(load(weights, "m.weight"), TABLE[CODES] * np.array([[2.0], [0.5]], np.float32))
    assert weights.codes("m.weight") is None


def test_nf4_with_quantised_scales(tmp_path: Path) -> None:
    nested = np.linspace(-1, 1, 256).astype(np.float32)
    tensors = {
        "m.weight": PACKED,
        "m.weight.absmax": np.array([255, 10], np.uint8),
        "m.weight.nested_absmax": np.array([0.25], np.float32),
        "m.weight.nested_quant_map": nested,
        "m.weight.quant_map": TABLE,
        "m.weight.quant_state.bitsandbytes__nf4": nf4_state(nested_blocksize=256, nested_offset=0.75),
    }
    weights = write(tmp_path, {"quant_method": "bitsandbytes", "load_in_4bit": True}, tensors)
    scales = nested[[255, 10]] * np.float32(0.25) + np.float32(0.75)
    np.testing.assert_array_equal(load(weights, "m.weight"), TABLE[CODES] * scales[:, None])


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "gptq", "bits": 3}, r"GPTQ with bits 3 cannot be read; known: 2, 4, 8"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, r"'marlin' cannot be read; known: gptq"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, r"version 'gemv' cannot be read"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, r"without load_in_4bit"),
        ({"quant_method": "compressed-tensors", "format": "dense"}, r"format 'dense' cannot be read; known: float-"),
        ({"quant_method": "hqq"}, r"quant_method 'hqq' cannot be read; known: awq, bitsandbytes, compressed-tensors"),
    ],
)
def test_unknown_variants_name_those_known(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        write(tmp_path, settings, {"m.qweight": np.zeros((1, 1), np.int32)})


def test_nan_scale_names_the_tensor(tmp_path: Path) -> None:
    """Case C46."""
    scales = np.full((1, 8), np.nan, np.float16)
    with pytest.raises(CheckpointError, match=r"tensor 'm\.scales' holds NaN"):
        load(gptq_case(tmp_path, 7, {}, **{"m.scales": scales}), "m.weight")


def test_unpack_is_the_inverse_of_pack() -> None:
    codes = np.random.default_rng(0).integers(0, 16, (16, 8))
    np.testing.assert_array_equal(unpack_bits(pack(codes, 4, 0), 4, axis=0), codes)
    np.testing.assert_array_equal(unpack_bits(pack(codes, 4, 1), 4, axis=1), codes)
