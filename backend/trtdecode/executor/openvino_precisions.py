"""What each compute precision means to OpenVINO's CPU plugin: the models to compile, and their properties.

Compute precisions. The first is exact and its results do not depend on which requests share a step; the others are
faster on CPUs with the instructions, and round differently when the batch changes.

    f32     weights are unpacked to f32, everything is computed in f32
    int8    the inputs of INT8 matrix products are quantised to 8 bits in groups, on the fly (needs VNNI to pay)
    bf16    matrix products in bfloat16, and OpenVINO's attention; ours is f32 in between (needs AMX to pay)
    mixed   int8 for small steps, bf16 for steps of MIXED_BF16_TOKENS and more: two compiled models, one KV pool

An INT8 product scales its sum once a group, so large groups are fast: 192 inputs against 32 save a fifth of a step of
32 sequences. A group lies within one group of the weights, which is why `trtdecode import --requantize` gives a row
one scale. Weights whose zero points are no integers (GGUF's Q4_1 and k-quants) are computed in f32 without a word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdecode.errors import ConfigError

if TYPE_CHECKING:
    import openvino as ov

#: From here on AMX in bfloat16 overtakes INT8 dot products with groups of 192: SmolLM2 on two Xeon cores decoded 1.16
#: times as fast in INT8 at 32 sequences, the same at 64 and 96, and 1.13 times as fast in bfloat16 at 128.
MIXED_BF16_TOKENS = 64
#: Inputs quantised together, best first; the last is OpenVINO's own default. Measured with AVX-512 VNNI.
ACTIVATION_GROUP_SIZES = (192, 128, 96, 64, 32)

COMPUTE_PRECISIONS = ("f32", "int8", "bf16", "mixed")
BF16_PRECISIONS = ("bf16", "mixed")

#: One compiled model: the smallest step that it takes, in tokens, and its properties.
Program = tuple[int, dict[str, Any]]


def programs(compute_precision: str, model: ov.Model) -> tuple[Program, ...]:
    """The models to compile, smallest step first."""
    exact: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    int8 = exact | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": activation_group_size(model)}
    bf16 = exact | {"INFERENCE_PRECISION_HINT": "bf16"}
    return {
        "f32": ((0, exact),),
        "int8": ((0, int8),),
        "bf16": ((0, bf16),),
        "mixed": ((0, int8), (MIXED_BF16_TOKENS, bf16)),
    }[compute_precision]


@dataclass(frozen=True, slots=True)
class CodedWeights:
    """What the codes of one matrix product's weights look like."""

    group_size: int  # inputs that share a scale
    has_float_zeros: bool  # zero points that are no integers


def activation_group_size(model: ov.Model) -> int:
    """The best group that lies within a group of every product's weights."""
    common = math.gcd(*(weights.group_size for weights in coded_weights(model)))
    return next((size for size in ACTIVATION_GROUP_SIZES if common % size == 0), ACTIVATION_GROUP_SIZES[-1])


def coded_weights(model: ov.Model) -> Iterator[CodedWeights]:
    """The weights of matrix products that are stored in integer codes."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul" or not node.get_attributes()["transpose_b"]:
            continue
        value, num_columns = node.input_value(1), node.input_value(1).get_partial_shape()[-1]
        num_groups, has_float_zeros = 0, False
        while value.get_node().get_input_size():
            kind = value.get_node().get_type_name()
            if kind == "Multiply":
                num_groups = math.prod(value.get_node().input_value(1).get_shape()[1:])
            if kind == "Subtract":
                has_float_zeros = not _source(value.get_node().input_value(1)).get_element_type().is_integral()
            value = value.get_node().input_value(0)
        if num_groups and value.get_element_type().is_integral():
            yield CodedWeights(num_columns.get_length() // num_groups, has_float_zeros)


def _source(value: Any) -> Any:
    """The constant that a value is made from."""
    while value.get_node().get_input_size():
        value = value.get_node().input_value(0)
    return value


def has_int8_dot_product(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has VNNI: without it OpenVINO computes INT8 products in f32."""
    return bool({"avx512_vnni", "avx_vnni"} & set(cpuinfo.read_text("utf-8", "replace").split()))


def describe_int8_products(model: ov.Model, *, has_dot_product: bool) -> str:
    """How many products with coded weights INT8 really speeds up, and what to do about the others."""
    if not has_dot_product:
        return "none: this CPU has no VNNI, so OpenVINO computes them in f32"
    found = [weights.has_float_zeros for weights in coded_weights(model)]
    text = f"{found.count(False)} of {len(found)} in groups of {activation_group_size(model)}"
    if any(found):
        text += " (the others' zero points are no integers: computed in f32; `trtdecode import --requantize` helps)"
    return text


def check_hardware(core: ov.Core, compute_precision: str) -> None:
    """Raises ConfigError for a precision that the CPU lacks: OpenVINO would compute in f32 without a word."""
    if compute_precision in BF16_PRECISIONS and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ConfigError(f"compute_precision: this CPU has no bfloat16 for {compute_precision}; use int8 or f32")
