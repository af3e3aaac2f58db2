"""Which activation groups a model's weights allow, and what is said of weights that INT8 products do not take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from trtdecode.executor.openvino_precisions import (
    activation_group_size,
    coded_weights,
    describe_int8_products,
    has_int8_dot_product,
    programs,
)


def product(x: ov.Output, num_columns: int, group: int, zeros: str | None = None) -> ov.Output:
    """x times INT8 weights [64, num_columns], as OpenVINO's frontend makes them of DequantizeLinear."""
    num_groups = num_columns // group
    codes = np.ones((64, num_groups, group), np.uint8 if zeros else np.int8)
    value = op.convert(op.constant(codes), "f32")
    if zeros == "float":
        value = op.subtract(value, op.constant(np.full((64, num_groups, 1), 0.5, np.float32)))
    if zeros == "integer":
        value = op.subtract(value, op.convert(op.constant(np.full((64, num_groups, 1), 3, np.uint8)), "f32"))
    value = op.multiply(value, op.constant(np.ones((64, num_groups, 1), np.float32)))
    weights = op.reshape(value, op.constant(np.array([64, num_columns], np.int64)), False)
    return op.matmul(x, weights, False, True)


def model(*products: tuple[int, int] | tuple[int, int, str]) -> ov.Model:
    inputs = [op.parameter([-1, columns], np.float32) for columns, *_ in products]
    return ov.Model([product(x, *how) for x, how in zip(inputs, products, strict=True)], inputs, "m")


@pytest.mark.parametrize(
    ("products", "size"),
    [
        ([(576, 576), (1536, 1536)], 192),  # a scale a row: SmolLM2's two widths
        ([(4096, 4096), (11008, 11008)], 128),  # 11008 = 43 * 256
        ([(576, 576), (1536, 32)], 32),  # one product's groups hold all back
        ([(1536, 64)], 64),
        ([(48, 48)], 32),  # nothing divides: OpenVINO's default, which it leaves alone where it does not fit
        ([], 192),  # no codes at all
    ],
)
def test_the_activation_group_lies_within_every_group_of_weights(products: list[tuple[int, int]], size: int) -> None:
    floats = op.parameter([-1, 8], np.float32)
    made = (
        model(*products)
        if products
        else ov.Model([op.matmul(floats, op.constant(np.eye(8, dtype=np.float32)), False, True)], [floats])
    )
    assert activation_group_size(made) == size
    assert programs("int8", made)[0][1]["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == size
    assert programs("mixed", made)[0] == programs("int8", made)[0]
    assert programs("f32", made)[0][1]["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == 0


def test_zero_points_that_are_no_integers_are_told() -> None:
    made = model((96, 96), (96, 96, "integer"), (96, 96, "float"))
    assert sorted(weights.has_float_zeros for weights in coded_weights(made)) == [False, False, True]
    assert describe_int8_products(made, has_dot_product=True) == (
        "2 of 3 in groups of 96 (the others' zero points are no integers: computed in f32; "
        "`trtdecode import --requantize` helps)"
    )
    assert describe_int8_products(model((96, 96)), has_dot_product=True) == "1 of 1 in groups of 96"


def test_without_vnni_no_product_is_int8(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    for flags, expected in (("fpu avx2 fma", False), ("avx2 avx512_vnni", True), ("avx2 avx_vnni", True)):
        cpuinfo.write_text(f"flags\t\t: {flags}\n")
        assert has_int8_dot_product(cpuinfo) is expected
    text = describe_int8_products(model((96, 96)), has_dot_product=False)
    assert text == "none: this CPU has no VNNI, so OpenVINO computes them in f32"


def test_openvino_computes_the_same_with_large_groups() -> None:
    """Against f32 on the same codes: INT8's rounding, and not the f32 products that an unfit group falls back to."""
    random = np.random.default_rng(0)
    codes = random.integers(-127, 128, (64, 576)).astype(np.int8)
    scales = random.random((64, 1)).astype(np.float32)
    inputs = random.standard_normal((5, 576)).astype(np.float32)
    x = op.parameter([-1, 576], np.float32)
    made = ov.Model(
        [op.matmul(x, op.multiply(op.convert(op.constant(codes), "f32"), op.constant(scales)), False, True)], [x]
    )
    results = {}
    for precision in ("f32", "int8"):
        compiled = ov.Core().compile_model(made, "CPU", programs(precision, made)[0][1])
        results[precision] = compiled(inputs)[0]
    reference = inputs.astype(np.float64) @ (codes.astype(np.float64) * scales).T
    size = np.abs(reference).max()
    assert np.abs(results["f32"] - reference).max() < 1e-5 * size
    error = np.abs(results["int8"] - reference).max()
    assert error < 1e-2 * size
    if has_int8_dot_product():  # without one OpenVINO computes in f32
        assert error > 1e-5 * size
