"""Layer reports on disk, and what their kernels cost at least."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from trtbuild.engine.cost_table import cost_diff_lines, cost_lines, fusion_lines, pass_cost
from trtbuild.engine.layer_report import (
    Check,
    Kernel,
    KernelTensor,
    LayerReport,
    SegmentLayers,
    read_report,
    write_report,
)
from trtbuild.engine.roofline import device_for, kernel_cost, matmul_flops
from trtdecode.errors import BuildError, ConfigError

K, N = 576, 1536


def tensor(name: str, dtype: str, *shape: int) -> KernelTensor:
    return KernelTensor(name, dtype, shape)


def matmul(dtype: str = "Half", *, fused: tuple[str, ...] = ("up",), kind: str = "runtime_fusion") -> Kernel:
    """x[T, K] times a stored [K, N] in `dtype`; weight-only types multiply FP16 inputs."""
    return Kernel(
        name="__myl_FcAdd",
        kind=kind,
        profile=0,
        inputs=(tensor("x", "FP8" if dtype == "FP8" else "Half", -1, K),),
        constants=(tensor("w", dtype, K, N),),
        outputs=(tensor("y", "Half", -1, N),),
        onnx_nodes=fused,
    )


NORM = Kernel("__myl_CastMul", "kgen", 0, (tensor("y", "Half", -1, N),), (), (tensor("z", "Half", -1, N),), ("norm",))
WAIT = Kernel("__mye1", "wait", 0, (), (), (), ())
PREFILL = dataclasses.replace(NORM, profile=1)


def report(*kernels: Kernel, names: tuple[str, ...] = ("segment_000",), precision: str = "fp16") -> LayerReport:
    check = Check("residual_norm", names[0], 0, ("add", "norm"), True, True, ("__myl_CastMul",))
    lost = Check("gate_up_silu_in_matmul", names[0], 0, ("up", "act"), False, False, ("a", "b"))
    operators = {"up": "Gemm", "norm": "RMSNormalization", "act": "Swish"}
    segments = tuple(SegmentLayers(name, kernels, operators, (check, lost)) for name in names)
    return LayerReport(precision, 89, "tensorrt-rtx", "1.7.1.116", (("decode", 8), ("prefill", 512)), segments)


def test_round_trip(tmp_path: Path) -> None:
    original = report(matmul(), NORM, WAIT, PREFILL, names=("segment_000", "segment_001"))
    path = tmp_path / "reports" / "layers.json"
    write_report(path, original)
    assert read_report(path) == original
    assert len(path.read_text().splitlines()) < 40  # a kernel a line


def test_what_is_not_a_report(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    with pytest.raises(BuildError, match="not found; `trtdecode build` writes it"):
        read_report(path)
    path.write_text('{"format_version": 1}')
    with pytest.raises(BuildError, match="not a layer report"):
        read_report(path)
    path.write_text('{"format_version": 9}')
    with pytest.raises(BuildError, match="format_version 9, this trtdecode reads 1"):
        read_report(path)


@pytest.mark.parametrize(("dtype", "weight_bytes"), [("Half", 2), ("Int8", 1), ("FP8", 1), ("Int4", 0.5)])
def test_bytes_and_operations_of_a_matmul(dtype: str, weight_bytes: float) -> None:
    kernel = matmul(dtype)
    cost = kernel_cost(kernel, 8, device_for(89, "L4"))
    input_bytes = 1 if dtype == "FP8" else 2
    assert cost.num_bytes == 8 * K * input_bytes + K * N * weight_bytes + 8 * N * 2
    assert cost.flops == 2 * 8 * K * N
    assert cost.seconds == cost.num_bytes / 300e9  # few tokens: bound by memory
    assert cost.is_memory_bound


def test_many_tokens_are_bound_by_arithmetic() -> None:
    device = device_for(89, "RTX-4090")  # 164 operations a byte; on an L4 (403) this would still be memory-bound
    cost = kernel_cost(matmul(), 4096, device)
    assert not cost.is_memory_bound
    assert cost.seconds == pytest.approx(2 * 4096 * K * N / 165e12)
    fp8 = kernel_cost(matmul("FP8"), 4096, device)
    assert fp8.seconds == pytest.approx(cost.seconds / 2)  # FP8 units
    weight_only = kernel_cost(matmul("Int8"), 4096, device)
    assert weight_only.seconds == cost.seconds  # INT8 weights are multiplied in FP16


def test_a_tied_head_and_a_batched_matmul() -> None:
    head = Kernel(
        "__myl_FcCast",
        "runtime_fusion",
        0,
        (tensor("h", "Half", -1, K), tensor("table", "Half", 49152, K)),
        (),
        (tensor("logits", "Float", -1, 49152),),
        ("head",),
    )
    assert matmul_flops(head, 4) == 2 * 4 * K * 49152
    assert matmul_flops(NORM, 4) == 0


def test_devices() -> None:
    assert device_for(89).sm == 89
    assert device_for(89, "H200").name == "H200"
    with pytest.raises(ConfigError, match="--device 'V100': not in the table"):
        device_for(89, "V100")
    with pytest.raises(ConfigError, match="no device of SM 61 in the table"):
        device_for(61)


def test_the_whole_pass() -> None:
    device = device_for(89, "L4")
    two = report(matmul(), NORM, WAIT, PREFILL, names=("segment_000", "segment_001"))
    cost = pass_cost(two, 0, device)
    norm_bytes, matmul_bytes = 8 * N * 2 * 2, 8 * K * 2 + K * N * 2 + 8 * N * 2
    assert (cost.num_kernels, cost.num_bytes, cost.flops) == (4, 2 * (norm_bytes + matmul_bytes), 2 * 2 * 8 * K * N)
    assert cost.seconds == pytest.approx(cost.num_bytes / 300e9)
    assert pass_cost(two, 1, device).num_bytes == 2 * 512 * N * 2 * 2  # the other profile's own kernels and tokens


def test_lines() -> None:
    device = device_for(89, "L4")
    fp16, int8 = report(matmul(), NORM, WAIT), report(matmul("Int8"), NORM, precision="int8_weight")
    lines = list(cost_lines(fp16, device))
    assert lines[0] == "profile decode at 8 tokens on L4: 2 kernels, 1.9 MB, 0.01 GFLOP, at least 6 us"
    assert " ".join(lines[1].split()) == "6.0 us 1 x 1803.3 kB 14.2 MFLOP memory Gemm Half -> Half"
    assert " ".join(lines[2].split()) == "0.2 us 1 x 49.2 kB 0.0 MFLOP memory RMSNormalization Half -> Half"
    difference = list(cost_diff_lines(fp16, int8, device))
    assert difference[0] == "profile decode at 8 tokens on L4: 0.52 of the bound"
    assert difference[1] == "  - 2 kernels, 1.9 MB, 0.01 GFLOP, at least 6 us"
    assert difference[2] == "  + 2 kernels, 1.0 MB, 0.01 GFLOP, at least 3 us"
    assert list(fusion_lines(fp16)) == [
        "gate_up_silu_in_matmul: 0 of 1 (reported)",
        "residual_norm: 1 of 1 (required)",
    ]
