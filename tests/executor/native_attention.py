"""The native attention operator alone in a compiled model, and what it should give, in numpy and float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from openvino.utils.node_factory import NodeFactory
from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.openvino_native_attention import BLOCK_SIZE, library

NUM_BLOCKS = 48


@dataclass(frozen=True)
class Layer:
    """An operator to test: its attributes, and how it rotates."""

    spec: AttentionSpec
    rotary_dim: int = 0
    interleaved: bool = False

    @property
    def widths(self) -> tuple[int, int, int]:
        kv = self.spec.num_kv_heads * self.spec.head_dim
        return self.spec.num_heads * self.spec.head_dim, kv, kv


def layer(num_heads: int, num_kv_heads: int, head_dim: int, **options: object) -> Layer:
    rotation = {name: options.pop(name) for name in ("rotary_dim", "interleaved") if name in options}
    spec = AttentionSpec(num_heads, num_kv_heads, head_dim, scale=head_dim**-0.5, **options)  # type: ignore[arg-type]
    return Layer(spec, **rotation)  # type: ignore[arg-type]


@dataclass
class Tokens:
    """Projections of a sequence's tokens, and the blocks that hold it."""

    qkv: np.ndarray  # f32[T, sum of widths]
    blocks: list[int]
    num_computed: int = 0


class Operator:
    """The operator compiled on the CPU with a cache of NUM_BLOCKS blocks that holds NaN."""

    def __init__(self, tested: Layer, *, kv_cache_precision: str, packed: bool = True, num_threads: int = 2) -> None:
        core = ov.Core()
        core.add_extension(library())
        factory = NodeFactory()
        factory.add_extension(library())
        spec, widths = tested.spec, tested.widths
        begins = (0, *np.cumsum(widths[:2]).tolist()) if packed else (0, 0, 0)
        attributes = {
            **{name: getattr(spec, name) for name in ("num_heads", "num_kv_heads", "head_dim", "sliding_window")},
            "scale": spec.scale,
            "softcap": spec.softcap,
            "alibi_slopes": list(spec.alibi_slopes),
            "rotary_dim": tested.rotary_dim,
            "interleaved": tested.interleaved,
            **dict(zip(("q_begin", "k_begin", "v_begin"), begins, strict=True)),
        }
        f32, is_u8 = ov.Type.f32, kv_cache_precision == "u8"
        cache_shape = (spec.num_kv_heads, BLOCK_SIZE, 2 * (spec.head_dim + 8 if is_u8 else spec.head_dim))
        self.cache = np.full((NUM_BLOCKS, *cache_shape), 255 if is_u8 else np.nan, np.uint8 if is_u8 else np.float32)
        inputs = [(f32, [-1, sum(widths)])] if packed else [(f32, [-1, width]) for width in widths]
        inputs += [(f32, [-1, 1, tested.rotary_dim])] if tested.rotary_dim else []
        inputs += [(ov.Type.u8 if is_u8 else f32, [-1, *cache_shape]), (ov.Type.i32, [-1])]
        parameters = [ov.opset13.parameter(shape, kind) for kind, shape in inputs]
        made = factory.create("PagedAttention", [parameter.output(0) for parameter in parameters], attributes)
        model = ov.Model([made.output(0)], parameters)
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": num_threads}
        self._request = core.compile_model(model, "CPU", options).create_infer_request()
        self._tested, self._packed = tested, packed

    def step(self, *work: tuple[Tokens, int]) -> list[np.ndarray]:
        """The outputs f32[count, num_heads * head_dim] of `count` more tokens of each sequence."""
        rows = np.concatenate([tokens.qkv[tokens.num_computed :][:count] for tokens, count in work])
        past = [tokens.num_computed for tokens, _ in work]
        tables = [tokens.blocks[: -(-(tokens.num_computed + count) // BLOCK_SIZE)] for tokens, count in work]
        query_begins = np.cumsum([0, *(count for _, count in work)])
        numbers = [
            len(work),
            *past,
            *query_begins,
            *np.cumsum([0, *map(len, tables)]),
            *(block for table in tables for block in table),
        ]
        inputs = [rows] if self._packed else np.split(rows, np.cumsum(self._tested.widths[:2]), axis=1)
        if self._tested.rotary_dim:
            positions = np.concatenate([np.arange(count) + begin for begin, (_, count) in zip(past, work, strict=True)])
            inputs.append(np.concatenate(angles(positions, self._tested.rotary_dim), -1)[:, None].astype(np.float32))
        inputs = [np.ascontiguousarray(value) for value in (*inputs, self.cache, np.array(numbers, np.int32))]
        for index, value in enumerate(inputs):
            self._request.set_input_tensor(index, ov.Tensor(value, shared_memory=True))
        self._request.infer()
        out = self._request.get_output_tensor(0).data.copy()
        for tokens, count in work:
            tokens.num_computed += count
        return np.split(out, query_begins[1:-1])


def angles(positions: np.ndarray, rotary_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines [T, rotary_dim / 2]."""
    product = positions[:, None] * 1e4 ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    return np.cos(product), np.sin(product)


def random_tokens(tested: Layer, num: int, seed: int, first_block: int = 1) -> Tokens:
    """Values of about 1, in blocks that do not follow each other."""
    random = np.random.default_rng([seed, num])
    count = -(-num // BLOCK_SIZE)
    blocks = first_block + random.permutation(count)
    return Tokens(random.standard_normal((num, sum(tested.widths))).astype(np.float32), blocks.tolist())


@dataclass
class Reference:
    """Attention over whole sequences in float64, without cache, blocks or batches."""

    tested: Layer
    rounding: bool = False  # keys and values go through 8-bit codes
    tables: dict[str, np.ndarray] = field(default_factory=dict)

    def outputs(self, tokens: Tokens) -> np.ndarray:
        """f64[T, num_heads * head_dim] of every token."""
        spec, num = self.tested.spec, len(tokens.qkv)
        parts = np.split(tokens.qkv, np.cumsum(self.tested.widths[:2]), axis=1)
        query, key, value = (part.reshape(num, -1, spec.head_dim) for part in parts)
        query, key = self._rotated(query), self._rotated(key)
        if self.rounding:
            key, value = through_codes(key), through_codes(value)
        group = spec.num_heads // spec.num_kv_heads
        key, value = (np.repeat(part.astype(np.float64), group, axis=1) for part in (key, value))
        scores = np.einsum("qhd,khd->hqk", query.astype(np.float64), key) * spec.scale
        if spec.softcap:
            scores = spec.softcap * np.tanh(scores / spec.softcap)
        behind = np.arange(num)[:, None] - np.arange(num)
        if spec.alibi_slopes:
            scores -= np.array(spec.alibi_slopes)[:, None, None] * behind
        seen = (behind >= 0) & (behind < (spec.sliding_window or num))
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, value).reshape(num, -1)

    def _rotated(self, heads: np.ndarray) -> np.ndarray:
        dim = self.tested.rotary_dim
        if not dim:
            return heads
        cos, sin = (table[:, None] for table in angles(np.arange(len(heads)), dim))
        turned = heads.astype(np.float64)
        first, second = (
            (slice(0, dim, 2), slice(1, dim, 2))
            if self.tested.interleaved
            else (
                slice(0, dim // 2),
                slice(dim // 2, dim),
            )
        )
        a, b = turned[..., first].copy(), turned[..., second].copy()
        turned[..., first], turned[..., second] = a * cos - b * sin, b * cos + a * sin
        return turned


def through_codes(heads: np.ndarray) -> np.ndarray:
    """Rounded to 256 steps between the least and the greatest number of each token and head."""
    least, greatest = (reduce(heads, axis=-1, keepdims=True) for reduce in (np.min, np.max))
    scale = (greatest - least) / 255
    return np.floor((heads - least) / scale + 0.5) * scale + least
