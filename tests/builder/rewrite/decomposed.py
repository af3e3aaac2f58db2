"""The forms that exporters write, and near misses of each."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx_ir as ir
from builder.engine.graphs import WIDTH, Writer


def layer_norm(*, axis: int = -1, reciprocal: bool = False, power: bool = True) -> ir.Model:
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    axes = w.constant("axes", np.array([axis]))
    deviation = w.op("deviation", "Sub", x, w.op("mean", "ReduceMean", x, axes, keepdims=1))
    two = w.constant("two", np.float32(2))
    squares = w.op("squares", "Pow", deviation, two) if power else w.op("squares", "Mul", deviation, deviation)
    variance = w.op("variance", "ReduceMean", squares, axes, keepdims=1)
    root = w.op("root", "Sqrt", w.op("safe", "Add", variance, w.constant("epsilon", np.float32(1e-5))))
    if reciprocal:
        normalized = w.op("normalized", "Mul", deviation, w.op("inverse", "Reciprocal", root))
    else:
        normalized = w.op("normalized", "Div", deviation, root)
    scaled = w.op("scaled", "Mul", normalized, w.weight("g", WIDTH, scale=1.0))
    w.output(w.op("y", "Add", scaled, w.weight("b", WIDTH)), ["T", WIDTH])
    return w.model()


def rms_norm(*, scale_first: bool = False, casts: bool = False, axis: int = -1) -> ir.Model:
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    inner = w.op("up", "Cast", x, to=int(ir.DataType.FLOAT)) if casts else x
    mean = w.op(
        "mean", "ReduceMean", w.op("squares", "Mul", inner, inner), w.constant("axes", np.array([axis])), keepdims=1
    )
    root = w.op("root", "Sqrt", w.op("safe", "Add", mean, w.constant("epsilon", np.float32(1e-5))))
    normalized = w.op("normalized", "Mul", inner, w.op("inverse", "Reciprocal", root))
    if casts:
        normalized = w.op("down", "Cast", normalized, to=int(ir.DataType.FLOAT))
    scale = w.weight("g", WIDTH, scale=1.0)
    sides = (scale, normalized) if scale_first else (normalized, scale)
    w.output(w.op("y", "Mul", *sides), ["T", WIDTH])
    return w.model()


def gelu_erf(*, half_first: bool = False, divide: bool = True, root_two: float = math.sqrt(2)) -> ir.Model:
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    half, one = w.constant("half", np.float32(0.5)), w.constant("one", np.float32(1))
    constant = w.constant("root_two", np.float32(root_two if divide else 1 / root_two))
    erf = w.op("erf", "Erf", w.op("argument", "Div" if divide else "Mul", x, constant))
    inner = w.op("inner", "Add", erf, one)
    if half_first:
        result = w.op("y", "Mul", w.op("halved", "Mul", x, half), inner)
    else:
        result = w.op("y", "Mul", w.op("product", "Mul", x, inner), half)
    w.output(result, ["T", WIDTH])
    return w.model()


def gelu_tanh(*, power: bool = True, cubic: float = 0.044715) -> ir.Model:
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    if power:
        cube = w.op("cube", "Pow", x, w.constant("three", np.float32(3)))
    else:
        cube = w.op("cube", "Mul", w.op("square", "Mul", x, x), x)
    polynomial = w.op("polynomial", "Add", x, w.op("cubic_term", "Mul", cube, w.constant("cubic", np.float32(cubic))))
    scaled = w.op("scaled", "Mul", polynomial, w.constant("outer", np.float32(math.sqrt(2 / math.pi))))
    inner = w.op("inner", "Add", w.op("tanh", "Tanh", scaled), w.constant("one", np.float32(1)))
    halved = w.op("halved", "Mul", x, w.constant("half", np.float32(0.5)))
    w.output(w.op("y", "Mul", halved, inner), ["T", WIDTH])
    return w.model()


def silu(*, sigmoid_first: bool = False, other: bool = False) -> ir.Model:
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    gate = w.op("gate", "Sigmoid", w.op("negated", "Neg", x) if other else x)
    w.output(w.op("y", "Mul", *((gate, x) if sigmoid_first else (x, gate))), ["T", WIDTH])
    return w.model()


def linear_softmax(*, axis: int = -1) -> ir.Model:
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    logits = w.op("head", "Gemm", x, w.weight("w", 32, WIDTH), w.weight("b", 32), transB=1)
    axes = w.constant("axes", np.array([axis]))
    weights = w.op(
        "weights", "Exp", w.op("shifted", "Sub", logits, w.op("largest", "ReduceMax", logits, axes, keepdims=1))
    )
    w.output(w.op("y", "Div", weights, w.op("total", "ReduceSum", weights, axes, keepdims=1)), ["T", 32])
    return w.model()


def flattened_linear_gelu(*, restores: bool = True) -> ir.Model:
    """Reshape, Gemm, Reshape, GELU over [1, T, width]."""
    w = Writer()
    x = w.input("x", [1, "T", WIDTH])
    rows = w.op("flat", "Reshape", x, w.constant("flat_shape", np.array([-1, WIDTH])))
    product = w.op("linear", "Gemm", rows, w.weight("w", 64, WIDTH), w.weight("b", 64), transB=1)
    shape = [1, -1, 64] if restores else [-1, 1, 64]
    back = w.op("unflattened", "Reshape", product, w.constant("shape", np.array(shape)))
    y = w.op("y", "Gelu", back)
    w.output(y, [1, "T", 64] if restores else ["T", 1, 64])
    return w.model()


def cast_scaled_weight(*, rows: bool = False, scalar: bool = False) -> ir.Model:
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    codes = w.constant("codes", np.random.default_rng(0).integers(-127, 128, (WIDTH, 64)).astype(np.int8))
    shape = () if scalar else (WIDTH, 1) if rows else (64,)
    scale = w.constant("scale", np.random.default_rng(1).uniform(0.001, 0.002, shape).astype(np.float32))
    weight = w.op("weight", "Mul", w.op("floats", "Cast", codes, to=int(ir.DataType.FLOAT)), scale)
    w.output(w.op("y", "MatMul", x, weight), ["T", 64])
    return w.model()


def transposed_weight(*, stored: bool = True) -> ir.Model:
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    weight = w.weight("w", 64, WIDTH) if stored else w.op("w", "Relu", w.weight("w0", 64, WIDTH))
    w.output(w.op("y", "MatMul", x, w.op("turned", "Transpose", weight, perm=[1, 0])), ["T", 64])
    return w.model()


def asymmetric(
    *, dtype: type = ml_dtypes.uint4, bias: bool = False, symmetric: bool = False, axis: int = 1
) -> ir.Model:
    """AWQ's and GPTQ's form: codes with a zero point a block. `symmetric` puts all of those in the middle."""
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    random = np.random.default_rng(0)
    num_groups, info = WIDTH // 32, ml_dtypes.iinfo(dtype)
    low, high = info.min, info.max
    codes = random.integers(low, high + 1, (64, WIDTH) if axis == 1 else (WIDTH, 64))
    shape = (64, num_groups) if axis == 1 else (num_groups, 64)
    middle = (low + high + 1) // 2
    zeros = np.full(shape, middle) if symmetric else random.integers(middle - 4, middle + 4, shape)
    scales = w.constant("scales", random.uniform(0.01, 0.02, shape).astype(np.float32))
    values = [w.constant("codes", codes.astype(dtype)), scales, w.constant("zeros", zeros.astype(dtype))]
    weight = w.op("weight", "DequantizeLinear", *values, axis=axis, block_size=32)
    inputs = (x, weight, w.weight("b", 64)) if bias else (x, weight)
    w.output(w.op("y", "Gemm", *inputs, transB=axis), ["T", 64])
    return w.model()


def float_zeros(
    *, bits: int = 4, packed: bool = True, num_out: int = 64, bias: bool = False, rows: bool = False
) -> ir.Model:
    """GGUF's form for types with a minimum: (Cast(codes) - zeros) * scales. `rows` has one zero point a row."""
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    random = np.random.default_rng(0)
    groups = (num_out, WIDTH // 32, 1)
    codes = random.integers(0, 1 << bits, (num_out, WIDTH // 32, 32)).astype(ml_dtypes.uint4 if packed else np.uint8)
    zeros = random.uniform(0, (1 << bits) - 1, (num_out, 1, 1) if rows else groups).astype(np.float32)
    scales = random.uniform(0.1, 0.2, groups).astype(np.float32) / (1 << bits)
    cast = w.op("floats", "Cast", w.constant("codes", codes), to=int(ir.DataType.FLOAT))
    shifted = w.op("shifted", "Sub", cast, w.constant("zeros", zeros))
    scaled = w.op("scaled", "Mul", shifted, w.constant("scales", scales))
    weight = w.op("weight", "Reshape", scaled, w.constant("shape", np.array([-1, WIDTH])))
    inputs = (x, weight, w.weight("b", num_out)) if bias else (x, weight)
    w.output(w.op("y", "Gemm", *inputs, transB=1), ["T", num_out])
    return w.model()


def blocks(
    *, dtype: type = np.int8, largest: int = 31, size: int = 32, num_out: int = 64, bias: bool = False
) -> ir.Model:
    """Signed codes in blocks of input channels, without zero points."""
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    random = np.random.default_rng(0)
    codes = random.integers(-largest, largest + 1, (num_out, WIDTH)).astype(dtype)
    scales = random.uniform(0.1, 0.2, (num_out, WIDTH // size)).astype(np.float32) / largest
    values = (w.constant("codes", codes), w.constant("scales", scales))
    weight = w.op("weight", "DequantizeLinear", *values, axis=1, block_size=size)
    inputs = (x, weight, w.weight("b", num_out)) if bias else (x, weight)
    w.output(w.op("y", "Gemm", *inputs, transB=1), ["T", num_out])
    return w.model()


def two_layers_over_one_input() -> ir.Model:
    """Q and K of a k-quant file that could not be joined: float zero points of 5 bits and of 4, in equal groups."""
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    random = np.random.default_rng(0)
    products = []
    for name, bits in (("wide", 5), ("narrow", 4), ("other", 5)):
        groups = (64, WIDTH // 32, 1)
        codes = random.integers(0, 1 << bits, (64, WIDTH // 32, 32)).astype(np.uint8)
        zeros = w.constant(f"{name}_zeros", random.uniform(0, 15, groups).astype(np.float32))
        scales = w.constant(f"{name}_scales", random.uniform(0.01, 0.02, groups).astype(np.float32))
        cast = w.op(f"{name}_floats", "Cast", w.constant(f"{name}_codes", codes), to=int(ir.DataType.FLOAT))
        scaled = w.op(f"{name}_scaled", "Mul", w.op(f"{name}_shifted", "Sub", cast, zeros), scales)
        weight = w.op(f"{name}_weight", "Reshape", scaled, w.constant(f"{name}_shape", np.array([-1, WIDTH])))
        products.append(w.op(name, "Gemm", x, weight, transB=1))
    w.output(w.op("y", "Concat", *products, axis=1), ["T", 192])
    return w.model()
