"""Before and after on real compiled kernels: what each rewrite is good for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from builder.engine.compiled import compile_fp16, copy_of, run
from builder.engine.graphs import WIDTH
from builder.rewrite import decomposed as forms
from trtbuild.engine.layer_report import Kernel
from trtbuild.quantize.float_types import cast_floats
from trtbuild.rewrite.rules import INT4_RULES, rewrite
from trtdecode.errors import BuildError, UnsupportedError


def rewritten(model: ir.Model) -> ir.Model:
    rewrite(model)
    return model


def both(make: Callable[[], ir.Model], folder: Path) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    return compile_fp16(make(), folder), compile_fp16(rewritten(make()), folder)


def test_a_flattened_linear_takes_its_activation_into_the_matmul(tmp_path: Path) -> None:
    before, after = both(forms.flattened_linear_gelu, tmp_path)
    assert [kernel.is_matmul for kernel in before] == [True, False]
    assert [kernel.is_matmul for kernel in after] == [True]
    assert {"linear", "y"} <= set(after[0].onnx_nodes)


def test_cast_scaled_weights_build_at_all_and_run_in_int8(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="Quantized constant"):
        compile_fp16(forms.cast_scaled_weight(), tmp_path)
    (kernel,) = compile_fp16(rewritten(forms.cast_scaled_weight()), tmp_path)
    assert kernel.is_matmul
    assert "Int8" in kernel.dtypes


def test_asymmetric_int4_parses_at_all_and_runs_in_int4(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="TensorRT's parser refuses"):
        compile_fp16(forms.asymmetric(), tmp_path)
    with pytest.raises(UnsupportedError, match="Non-zero zero point is not supported"):
        compile_fp16(forms.asymmetric(dtype=ml_dtypes.int4), tmp_path)
    assert_int4_stays(compile_fp16(rewritten(forms.asymmetric()), tmp_path))


def assert_int4_stays(kernels: tuple[Kernel, ...]) -> None:
    """INT4 enters matmuls, and nothing dequantises before them."""
    readers = [kernel for kernel in kernels if "Int4" in kernel.dtypes]
    assert readers
    assert all(kernel.is_matmul for kernel in readers)


def test_float_zero_points_build_at_all_and_run_in_int4(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="Failed to import initializer: codes"):
        compile_fp16(forms.float_zeros(), tmp_path)
    assert_int4_stays(compile_fp16(rewritten(forms.float_zeros()), tmp_path))


def test_five_bits_stay_quantised(tmp_path: Path) -> None:
    """Written out, the arithmetic on constants is folded: the engine then holds FP16."""

    def make() -> ir.Model:
        return forms.float_zeros(bits=5, packed=False)

    (before,) = compile_fp16(make(), tmp_path)
    assert "Half" in before.dtypes
    assert_int4_stays(compile_fp16(rewritten(make()), tmp_path))


@pytest.mark.parametrize(
    "make",
    [
        forms.blocks,
        lambda: forms.blocks(dtype=ml_dtypes.int4, largest=7, size=WIDTH),
        lambda: forms.blocks(dtype=ml_dtypes.int4, largest=7, num_out=63),
    ],
)
def test_blocks_that_were_dequantised_first_run_in_int4(make: Callable[[], ir.Model], tmp_path: Path) -> None:
    before = compile_fp16(make(), tmp_path)
    assert [kernel for kernel in before if {"Int8", "Int4"} & set(kernel.dtypes) and not kernel.is_matmul]
    after = make()
    assert rewrite(after, INT4_RULES) == {"unfused_blocks": 1}
    assert_int4_stays(compile_fp16(after, tmp_path))


def test_int8_with_a_scale_a_row_runs_in_int8(tmp_path: Path) -> None:
    after = forms.blocks(largest=127, size=WIDTH)
    rewrite(after, INT4_RULES)
    (kernel,) = compile_fp16(after, tmp_path)
    assert kernel.is_matmul
    assert "Int8" in kernel.dtypes


@pytest.mark.parametrize("make", [forms.layer_norm, forms.rms_norm])
def test_a_norm_is_computed_in_fp32(make: Callable[[], ir.Model], tmp_path: Path) -> None:
    before, after = both(make, tmp_path)
    assert before[0].operations[0] != "Cast"
    assert after[0].operations[0] == "Cast"  # the first thing the kernel does with its FP16 input
    # 400 squared is beyond FP16. (ONNX Runtime computes either form in FP32 on a CPU, so only the kernels tell.)
    x = np.random.default_rng(0).normal(0, 400, (4, WIDTH)).astype(np.float32)
    operator = rewritten(make())
    cast_floats(operator, "f16", fp32_outputs=("y",))
    np.testing.assert_allclose(run(operator, x=x.astype(np.float16)), run(make(), x=x), atol=0.01)


@pytest.mark.parametrize(
    ("make", "num_kernels"), [(forms.gelu_erf, 1), (forms.gelu_tanh, 1), (forms.silu, 1), (forms.transposed_weight, 1)]
)
def test_an_activation_is_one_kernel(make: Callable[[], ir.Model], num_kernels: int, tmp_path: Path) -> None:
    before, after = both(make, tmp_path)
    assert len(after) == num_kernels <= len(before)


def test_linear_and_softmax(tmp_path: Path) -> None:
    """`fused_linear_softmax`: TensorRT-RTX 1.7 makes a matmul and one softmax kernel of it, before and after."""
    before, after = both(forms.linear_softmax, tmp_path)
    assert [kernel.is_matmul for kernel in before] == [True, False]
    assert [kernel.is_matmul for kernel in after] == [True, False]
    assert "y" in after[1].onnx_nodes


def test_copies_are_independent() -> None:
    model = forms.silu()
    rewrite(copy_of(model))
    assert [node.op_type for node in model.graph] == ["Sigmoid", "Mul"]
