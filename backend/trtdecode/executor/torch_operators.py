"""The ONNX operators that our graphs use, as small torch functions.

Each takes the node's attributes, then its inputs (None for an absent optional one), and returns one tensor or a tuple.
Semantics follow the ONNX operator reference, opsets 20 to 24; only what builders emit is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Attributes = Mapping[str, Any]
Operator = Callable[..., Tensor | tuple[Tensor, ...]]

OPERATORS: dict[str, Operator] = {}


def _operator(op_type: str) -> Callable[[Operator], Operator]:
    """Registers the function for an ONNX operator."""

    def register(function: Operator) -> Operator:
        OPERATORS[op_type] = function
        return function

    return register


def _elementwise(name: str, function: Callable[..., Tensor]) -> None:
    OPERATORS[name] = lambda _attributes, *inputs: function(*inputs)


for _name, _function in {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Pow": torch.pow,
    "Neg": torch.neg,
    "Sqrt": torch.sqrt,
    "Reciprocal": torch.reciprocal,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "Relu": torch.relu,
    "Erf": torch.erf,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Abs": torch.abs,
    "Max": torch.maximum,
    "Greater": torch.greater,
    "MatMul": torch.matmul,
    "Identity": lambda x: x,
}.items():
    _elementwise(_name, _function)


def _ints(tensor: Tensor) -> list[int]:
    return [int(value) for value in tensor.tolist()]


@_operator("Gather")
def _gather(attributes: Attributes, data: Tensor, indices: Tensor) -> Tensor:
    axis = attributes.get("axis", 0) % data.dim()
    picked = data.index_select(axis, indices.reshape(-1))
    return picked.reshape(data.shape[:axis] + indices.shape + data.shape[axis + 1 :])


@_operator("Gemm")
def _gemm(attributes: Attributes, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.T if attributes.get("transA", 0) else a
    b = b.T if attributes.get("transB", 0) else b
    product = attributes.get("alpha", 1.0) * (a @ b)
    return product if c is None else product + attributes.get("beta", 1.0) * c


@_operator("Transpose")
def _transpose(attributes: Attributes, data: Tensor) -> Tensor:
    return data.permute(attributes.get("perm", list(range(data.dim()))[::-1]))


@_operator("Reshape")
def _reshape(attributes: Attributes, data: Tensor, shape: Tensor) -> Tensor:
    sizes = _ints(shape)
    if not attributes.get("allowzero", 0):
        sizes = [data.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return data.reshape(sizes)


@_operator("Squeeze")
def _squeeze(_attributes: Attributes, data: Tensor, axes: Tensor | None = None) -> Tensor:
    return data.squeeze() if axes is None else data.squeeze(_ints(axes))


@_operator("Unsqueeze")
def _unsqueeze(_attributes: Attributes, data: Tensor, axes: Tensor) -> Tensor:
    rank = data.dim() + axes.numel()
    for axis in sorted(axis % rank for axis in _ints(axes)):
        data = data.unsqueeze(axis)
    return data


@_operator("Expand")
def _expand(_attributes: Attributes, data: Tensor, shape: Tensor) -> Tensor:
    return data.expand(torch.broadcast_shapes(data.shape, tuple(_ints(shape))))


@_operator("Concat")
def _concat(attributes: Attributes, *inputs: Tensor) -> Tensor:
    return torch.cat(inputs, dim=attributes["axis"])


@_operator("Split")
def _split(attributes: Attributes, data: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = attributes.get("axis", 0)
    if sizes is not None:
        return tuple(torch.split(data, _ints(sizes), dim=axis))
    chunk = -(-data.shape[axis] // attributes["num_outputs"])  # the last part is the smaller one
    return tuple(torch.split(data, chunk, dim=axis))


@_operator("Slice")
def _slice(
    _attributes: Attributes,
    data: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    first, last = _ints(starts), _ints(ends)
    index = [slice(None)] * data.dim()
    for place, axis in enumerate(range(len(first)) if axes is None else _ints(axes)):
        index[axis % data.dim()] = slice(first[place], last[place], 1 if steps is None else _ints(steps)[place])
    return data[tuple(index)]


@_operator("Shape")
def _shape(attributes: Attributes, data: Tensor) -> Tensor:
    sizes = list(data.shape)[attributes.get("start", 0) : attributes.get("end", data.dim())]
    return torch.tensor(sizes, dtype=torch.int64)


@_operator("ReduceMean")
def _reduce_mean(attributes: Attributes, data: Tensor, axes: Tensor) -> Tensor:
    return data.mean(dim=_ints(axes), keepdim=bool(attributes.get("keepdims", 1)))


@_operator("Softmax")
def _softmax(attributes: Attributes, data: Tensor) -> Tensor:
    return torch.softmax(data, dim=attributes.get("axis", -1))


@_operator("Gelu")
def _gelu(attributes: Attributes, data: Tensor) -> Tensor:
    return F.gelu(data, approximate=attributes.get("approximate", "none"))


@_operator("Swish")
def _swish(attributes: Attributes, data: Tensor) -> Tensor:
    return data * torch.sigmoid(attributes.get("alpha", 1.0) * data)


@_operator("RMSNormalization")
def _rms_normalization(attributes: Attributes, data: Tensor, scale: Tensor) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * scale over the axes from `axis` on; computed in float32 (stash_type 1)."""
    axes = tuple(range(attributes.get("axis", -1) % data.dim(), data.dim()))
    wide = data.float()
    normal = wide * torch.rsqrt(wide.square().mean(dim=axes, keepdim=True) + attributes.get("epsilon", 1e-5))
    return normal.to(data.dtype) * scale


@_operator("LayerNormalization")
def _layer_normalization(attributes: Attributes, data: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    shape = data.shape[attributes.get("axis", -1) % data.dim() :]
    wide_bias = None if bias is None else bias.float()
    normal = F.layer_norm(data.float(), shape, scale.float(), wide_bias, attributes.get("epsilon", 1e-5))
    return normal.to(data.dtype)


@_operator("RotaryEmbedding")
def _rotary_embedding(
    attributes: Attributes, data: Tensor, cos_cache: Tensor, sin_cache: Tensor, position_ids: Tensor | None = None
) -> Tensor:
    """[batch, heads, tokens, head_dim], or [batch, tokens, heads * head_dim] with `num_heads` (opset 23).

    The caches are [positions, rotated / 2] with position_ids [batch, tokens], else [batch, tokens, rotated / 2].
    """
    flat = data.dim() == 3
    heads = data.unflatten(-1, (attributes["num_heads"], -1)) if flat else data.transpose(1, 2)  # [B, T, H, D]
    rotated = attributes.get("rotary_embedding_dim", 0) or heads.shape[-1]
    cos, sin = (cache if position_ids is None else cache[position_ids] for cache in (cos_cache, sin_cache))
    cos, sin = cos[:, :, None, : rotated // 2], sin[:, :, None, : rotated // 2]
    turning, rest = heads[..., :rotated], heads[..., rotated:]
    if attributes.get("interleaved", 0):
        real, imaginary = turning[..., 0::2], turning[..., 1::2]
    else:
        real, imaginary = turning.chunk(2, dim=-1)
    turned = (real * cos - imaginary * sin, real * sin + imaginary * cos)
    joined = torch.stack(turned, dim=-1).flatten(-2) if attributes.get("interleaved", 0) else torch.cat(turned, dim=-1)
    result = torch.cat((joined, rest), dim=-1)
    return result.flatten(-2) if flat else result.transpose(1, 2)


@_operator("DequantizeLinear")
def _dequantize_linear(attributes: Attributes, data: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Tensor:
    """(data - zero_point) * scale: per tensor, per channel along `axis`, or in blocks of `block_size` along `axis`."""
    axis = attributes.get("axis", 1) % max(data.dim(), 1)
    block_size = attributes.get("block_size", 0)

    def spread(parameter: Tensor) -> Tensor:
        if parameter.numel() == 1 and not block_size:
            return parameter.reshape(())
        if block_size:
            return parameter.repeat_interleave(block_size, dim=axis).narrow(axis, 0, data.shape[axis])
        return parameter.reshape([-1 if place == axis else 1 for place in range(data.dim())])

    values = data.to(scale.dtype)
    if zero_point is not None:
        values = values - spread(zero_point.to(scale.dtype))
    return values * spread(scale)


@_operator("TopK")
def _top_k(attributes: Attributes, data: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    assert attributes.get("largest", 1), "TopK of the smallest is not emitted by our builders"
    values, indices = data.topk(_ints(count)[0], dim=attributes.get("axis", -1))
    return values, indices


@_operator("ReduceSum")
def _reduce_sum(attributes: Attributes, data: Tensor, axes: Tensor) -> Tensor:
    return data.sum(_ints(axes), keepdim=bool(attributes.get("keepdims", 1)))


@_operator("ReduceMax")
def _reduce_max(attributes: Attributes, data: Tensor, axes: Tensor) -> Tensor:
    return data.amax(_ints(axes), keepdim=bool(attributes.get("keepdims", 1)))


@_operator("ReduceL2")
def _reduce_l2(attributes: Attributes, data: Tensor, axes: Tensor) -> Tensor:
    return torch.linalg.vector_norm(data, dim=_ints(axes), keepdim=bool(attributes.get("keepdims", 1)))


@_operator("ScatterElements")
def _scatter_elements(attributes: Attributes, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return data.scatter(attributes.get("axis", 0), indices, updates)
