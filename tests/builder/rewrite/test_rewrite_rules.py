"""Every rule: what it makes of the exporter's forms, the same numbers before and after, and near misses untouched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from builder.engine.compiled import copy_of, operators, run
from builder.engine.graphs import WIDTH
from builder.rewrite import decomposed as forms
from trtbuild import rewrite as rewrite_package
from trtbuild.rewrite import (
    cast_scaled_weight,
    flattened_linear,
    float_zero_points,
    gelu_erf,
    gelu_tanh,
    layer_norm,
    rms_norm,
    silu,
    softmax,
    transposed_weight,
    unfused_blocks,
    zero_point_correction,
)
from trtbuild.rewrite.rules import INT4_RULES, RULES, rewrite

CODED = ["DequantizeLinear", "Gemm"]
PAIR = ["DequantizeLinear", "Concat", "Gemm"]
CORRECTION = ["Reshape", "ReduceSum", "Gemm", "Add"]

CASES: list[tuple[ModuleType, Callable[[], ir.Model], list[str]]] = [
    (layer_norm, forms.layer_norm, ["LayerNormalization"]),
    (layer_norm, lambda: forms.layer_norm(reciprocal=True, power=False), ["LayerNormalization"]),
    (rms_norm, forms.rms_norm, ["RMSNormalization"]),
    (rms_norm, lambda: forms.rms_norm(scale_first=True), ["RMSNormalization"]),
    (rms_norm, lambda: forms.rms_norm(casts=True), ["RMSNormalization"]),
    (rms_norm, lambda: forms.rms_norm(casts=True, scale_first=True), ["RMSNormalization"]),
    (gelu_erf, forms.gelu_erf, ["Gelu"]),
    (gelu_erf, lambda: forms.gelu_erf(half_first=True, divide=False), ["Gelu"]),
    (gelu_tanh, forms.gelu_tanh, ["Gelu"]),
    (gelu_tanh, lambda: forms.gelu_tanh(power=False), ["Gelu"]),
    (silu, forms.silu, ["Swish"]),
    (silu, lambda: forms.silu(sigmoid_first=True), ["Swish"]),
    (softmax, forms.linear_softmax, ["Gemm", "Softmax"]),
    (flattened_linear, forms.flattened_linear_gelu, ["MatMul", "Add", "Gelu"]),
    (cast_scaled_weight, forms.cast_scaled_weight, ["DequantizeLinear", "MatMul"]),
    (cast_scaled_weight, lambda: forms.cast_scaled_weight(rows=True), ["DequantizeLinear", "MatMul"]),
    (transposed_weight, forms.transposed_weight, ["MatMul"]),
    (zero_point_correction, forms.asymmetric, CODED + CORRECTION),
    (zero_point_correction, lambda: forms.asymmetric(dtype=ml_dtypes.int4, bias=True), CODED + CORRECTION),
    (zero_point_correction, lambda: forms.asymmetric(symmetric=True, bias=True), CODED),
    (zero_point_correction, lambda: forms.asymmetric(dtype=np.uint8, bias=True), PAIR + CORRECTION),
    (zero_point_correction, lambda: forms.asymmetric(dtype=np.int8), PAIR + CORRECTION),
    (float_zero_points, forms.float_zeros, CODED + CORRECTION),
    (float_zero_points, lambda: forms.float_zeros(packed=False, bias=True), CODED + CORRECTION),
    (float_zero_points, lambda: forms.float_zeros(bits=5, packed=False), PAIR + CORRECTION),
    (float_zero_points, lambda: forms.float_zeros(num_out=63), ["DequantizeLinear", "Gemm", "Slice", *CORRECTION]),
    (unfused_blocks, forms.blocks, PAIR),
    (unfused_blocks, lambda: forms.blocks(size=16, bias=True), PAIR),
    (unfused_blocks, lambda: forms.blocks(largest=127), PAIR + CORRECTION),
    (unfused_blocks, lambda: forms.blocks(largest=127, size=WIDTH, bias=True), CODED),
    (unfused_blocks, lambda: forms.blocks(dtype=ml_dtypes.int4, largest=7, size=WIDTH), CODED),
    (
        unfused_blocks,
        lambda: forms.blocks(dtype=ml_dtypes.int4, largest=7, num_out=63, bias=True),
        ["DequantizeLinear", "Gemm", "Slice", "Add"],
    ),
]

NEAR_MISSES: list[tuple[ModuleType, Callable[[], ir.Model]]] = [
    (layer_norm, lambda: forms.layer_norm(axis=0)),
    (rms_norm, lambda: forms.rms_norm(axis=0)),
    (gelu_erf, lambda: forms.gelu_erf(root_two=1.5)),
    (gelu_erf, lambda: forms.gelu_erf(root_two=1.5, divide=False)),
    (gelu_tanh, lambda: forms.gelu_tanh(cubic=0.05)),
    (silu, lambda: forms.silu(other=True)),
    (softmax, lambda: forms.linear_softmax(axis=0)),
    (flattened_linear, lambda: forms.flattened_linear_gelu(restores=False)),
    (cast_scaled_weight, lambda: forms.cast_scaled_weight(scalar=True)),
    (transposed_weight, lambda: forms.transposed_weight(stored=False)),
    (zero_point_correction, lambda: forms.asymmetric(axis=0)),
    (float_zero_points, lambda: forms.float_zeros(rows=True)),
    (unfused_blocks, lambda: forms.blocks(dtype=ml_dtypes.int4, largest=7)),
]


def sample(model: ir.Model) -> np.ndarray:
    shape = (5, WIDTH) if model.graph.inputs[0].shape.rank() == 2 else (1, 5, WIDTH)
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("rule", "make", "expected"), CASES)
def test_the_form_becomes_the_operator_with_the_same_numbers(
    rule: ModuleType, make: Callable[[], ir.Model], expected: list[str]
) -> None:
    before = make()
    after = copy_of(before)
    name = rule.__name__.rpartition(".")[2]
    assert rewrite(after, (rule,)) == {name: 1}
    assert operators(after) == expected
    assert all(node.name for node in after.graph)
    x = sample(before)
    np.testing.assert_allclose(run(after, x=x), run(before, x=x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rule", "make"), NEAR_MISSES)
def test_a_near_miss_stays(rule: ModuleType, make: Callable[[], ir.Model]) -> None:
    model = make()
    before = operators(model)
    assert rewrite(model, (rule,)) == {}
    assert operators(model) == before


def test_every_file_is_a_rule_and_every_rule_is_tested() -> None:
    folder = Path(next(iter(rewrite_package.__path__)))
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "rules", "constants", "coded_gemm"}
    rules = {*RULES, *INT4_RULES}
    assert {rule.__name__.rpartition(".")[2] for rule in rules} == files
    assert {rule for rule, _, _ in CASES} == rules
    assert {rule for rule, _ in NEAR_MISSES} == rules


def test_layers_over_one_input_share_what_is_computed_of_it() -> None:
    before = forms.two_layers_over_one_input()
    after = copy_of(before)
    assert rewrite(after) == {"float_zero_points": 3}
    made = Counter(operators(after))
    assert (made["ReduceSum"], made["Concat"]) == (1, 1 + 1)  # one of two copies of x, and the graph's own
    assert made["Gemm"] == 2 * 3
    x = sample(before)
    np.testing.assert_allclose(run(after, x=x), run(before, x=x), rtol=1e-4, atol=1e-5)
