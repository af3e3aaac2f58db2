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


def asymmetric_int4(
    *, signed: bool = False, bias: bool = False, symmetric: bool = False, wide: bool = False
) -> ir.Model:
    """AWQ's form: 4-bit codes with a zero point a block. `symmetric` puts all of those in the middle."""
    w = Writer()
    x = w.input("x", ["T", WIDTH])
    random = np.random.default_rng(0)
    num_groups, low = WIDTH // 32, -8 if signed else 0
    codes = random.integers(low, low + 16, (64, WIDTH))
    zeros = np.full((64, num_groups), low + 8) if symmetric else random.integers(low + 4, low + 12, (64, num_groups))
    dtype = np.int8 if wide else ml_dtypes.int4 if signed else ml_dtypes.uint4
    scales = w.constant("scales", random.uniform(0.01, 0.02, (64, num_groups)).astype(np.float32))
    values = [w.constant("codes", codes.astype(dtype)), scales, w.constant("zeros", zeros.astype(dtype))]
    weight = w.op("weight", "DequantizeLinear", *values, axis=1, block_size=32)
    inputs = (x, weight, w.weight("b", 64)) if bias else (x, weight)
    w.output(w.op("y", "Gemm", *inputs, transB=1), ["T", 64])
    return w.model()
