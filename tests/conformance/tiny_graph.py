"""Tiny random decoders that follow the graph contract, built with plain onnx.helper: nothing of trtbuild is needed,
and every shape is small enough to check by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class TinySpec:
    """A decoder's shape; the defaults are a two-layer Llama with grouped-query attention."""

    num_layers: int = 2
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 32
    mlp_size: int = 96
    vocab_size: int = 131
    max_positions: int = 512
    sliding_window: int = 0
    softcap: float = 0.0
    alibi_slopes: tuple[float, ...] = ()  # with slopes there is no RoPE
    zero_head: bool = False  # every logit is 0: all ids tie
    seed: int = 0

    def write(self, directory: Path) -> Path:
        """Writes `decoder.onnx` with its weights beside it and returns its path."""
        return _save(directory, self, _Builder(self))

    @property
    def hidden_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def num_outputs(self) -> int:
        return self.vocab_size

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


class TinyWeights:
    """Random float32 weights by name, drawn in a fixed order."""

    def __init__(self, spec: TinySpec) -> None:
        random = np.random.default_rng(spec.seed)
        hidden, kv = spec.hidden_size, spec.kv_size

        def matrix(rows: int, columns: int) -> np.ndarray:
            return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

        self.by_name: dict[str, np.ndarray] = {
            "embedding": random.standard_normal((spec.vocab_size, hidden)).astype(np.float32)
        }
        for layer in range(spec.num_layers):
            self.by_name |= {
                f"norm1.{layer}": random.uniform(0.5, 1.5, hidden).astype(np.float32),
                f"qkv.{layer}": matrix(hidden, hidden + 2 * kv),
                f"out.{layer}": matrix(hidden, hidden),
                f"norm2.{layer}": random.uniform(0.5, 1.5, hidden).astype(np.float32),
                f"gate_up.{layer}": matrix(hidden, 2 * spec.mlp_size),
                f"down.{layer}": matrix(spec.mlp_size, hidden),
            }
        self.by_name["norm"] = random.uniform(0.5, 1.5, hidden).astype(np.float32)
        self.by_name["head"] = matrix(hidden, spec.vocab_size) * (0 if spec.zero_head else 4)
        angles = np.arange(spec.max_positions)[:, None] * 1e4 ** (-np.arange(0, spec.head_dim, 2) / spec.head_dim)
        self.by_name["cos"] = np.cos(angles).astype(np.float32)
        self.by_name["sin"] = np.sin(angles).astype(np.float32)


@dataclass(frozen=True)
class AttentionOnly(TinySpec):
    """A graph that is one PagedAttention: token t's query, key and value are row t of a table, and the "logits" are
    the attention's output, so that what comes out can be reasoned about by hand."""

    num_layers: int = 1
    tables: tuple[np.ndarray, ...] = ()  # query [V, H * D], key and value [V, Hkv * D]

    def write(self, directory: Path) -> Path:
        return _save(directory, self, _AttentionBuilder(self))

    @property
    def num_outputs(self) -> int:
        return self.hidden_size


def _save(directory: Path, spec: TinySpec, builder: _Builder) -> Path:
    builder.body()
    model = helper.make_model(
        helper.make_graph(builder.nodes, "tiny", _inputs(spec), _outputs(spec), builder.initializers),
        opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid("trtdecode", 1)],
        ir_version=11,
    )
    path = directory / "decoder.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="decoder.onnx.data", size_threshold=64)
    return path


def _inputs(spec: TinySpec) -> list[onnx.ValueInfoProto]:
    def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = [
        value("input_ids", TensorProto.INT64, "T"),
        value("positions", TensorProto.INT64, "T"),
        value("past_lens", TensorProto.INT32, "B"),
        value("query_begins", TensorProto.INT32, "B1"),
        value("block_indices", TensorProto.INT32, "N"),
        value("block_begins", TensorProto.INT32, "B1"),
        value("max_context_len", TensorProto.INT32),
        value("logit_indices", TensorProto.INT64, "S"),
    ]
    for layer in range(spec.num_layers):
        for kind in ("key_cache", "value_cache"):
            shape = ("num_blocks", spec.num_kv_heads, "block_size", spec.head_dim)
            inputs.append(value(f"{kind}.{layer}", TensorProto.FLOAT, *shape))
    return inputs


def _outputs(spec: TinySpec) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ("S", spec.num_outputs))]


class _Builder:
    """Collects nodes and initializers."""

    def __init__(self, spec: TinySpec) -> None:
        self.spec = spec
        self.nodes: list[onnx.NodeProto] = []
        self.initializers = [numpy_helper.from_array(array, name) for name, array in self.weights().items()]

    def weights(self) -> dict[str, np.ndarray]:
        return TinyWeights(self.spec).by_name

    def add(self, op_type: str, inputs: list[str], output: str | list[str], **attributes: object) -> str:
        outputs = [output] if isinstance(output, str) else output
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name=f"node:{outputs[0]}", **attributes))
        return outputs[0]

    def constant(self, name: str, values: list[int]) -> str:
        self.initializers.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def body(self) -> None:
        spec = self.spec
        self.constant("qkv_sizes", [spec.hidden_size, spec.kv_size, spec.kv_size])
        self.constant("mlp_sizes", [spec.mlp_size, spec.mlp_size])
        self.constant("zero", [0])
        self.add("Unsqueeze", ["positions", "zero"], "positions_2d")
        hidden = self.add("Gather", ["embedding", "input_ids"], "hidden", axis=0)
        for layer in range(spec.num_layers):
            hidden = self.layer(layer, hidden)
        rows = self.add("Gather", [hidden, "logit_indices"], "rows", axis=0)
        normal = self.add("RMSNormalization", [rows, "norm"], "rows_norm", axis=-1, epsilon=1e-5)
        self.add("MatMul", [normal, "head"], "logits")

    def layer(self, index: int, hidden: str) -> str:
        spec = self.spec
        normal = self.add("RMSNormalization", [hidden, f"norm1.{index}"], f"n1.{index}", axis=-1, epsilon=1e-5)
        qkv = self.add("MatMul", [normal, f"qkv.{index}"], f"qkv_out.{index}")
        q, k, v = (f"{name}.{index}" for name in "qkv")
        self.add("Split", [qkv, "qkv_sizes"], [q, k, v], axis=-1)
        if not spec.alibi_slopes:
            q, k = self.rope(q, spec.num_heads), self.rope(k, spec.num_kv_heads)
        attended = self.attention(index, q, k, v)
        projected = self.add("MatMul", [attended, f"out.{index}"], f"projected.{index}")
        hidden = self.add("Add", [hidden, projected], f"h1.{index}")
        normal = self.add("RMSNormalization", [hidden, f"norm2.{index}"], f"n2.{index}", axis=-1, epsilon=1e-5)
        gate_up = self.add("MatMul", [normal, f"gate_up.{index}"], f"gate_up_out.{index}")
        self.add("Split", [gate_up, "mlp_sizes"], [f"gate.{index}", f"up.{index}"], axis=-1)
        gate = self.add("Swish", [f"gate.{index}"], f"act.{index}")
        product = self.add("Mul", [gate, f"up.{index}"], f"product.{index}")
        down = self.add("MatMul", [product, f"down.{index}"], f"down_out.{index}")
        return self.add("Add", [hidden, down], f"h2.{index}")

    def attention(self, index: int, q: str, k: str, v: str) -> str:
        spec = self.spec
        optional = {
            name: value for name in ("sliding_window", "softcap", "alibi_slopes") if (value := getattr(spec, name))
        }
        caches = [f"key_cache.{index}", f"value_cache.{index}"]
        batch = ["past_lens", "query_begins", "block_indices", "block_begins", "max_context_len"]
        return self.add(
            "PagedAttention",
            [q, k, v, *caches, *batch],
            f"attended.{index}",
            domain="trtdecode",
            scale=spec.head_dim**-0.5,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            **optional,
        )

    def rope(self, name: str, num_heads: int) -> str:
        batched = self.add("Unsqueeze", [name, "zero"], f"{name}:batched")
        inputs = [batched, "cos", "sin", "positions_2d"]
        turned = self.add("RotaryEmbedding", inputs, f"{name}:turned", num_heads=num_heads)
        return self.add("Squeeze", [turned, "zero"], f"{name}:rope")


class _AttentionBuilder(_Builder):
    """`AttentionOnly`'s graph."""

    def weights(self) -> dict[str, np.ndarray]:
        assert isinstance(self.spec, AttentionOnly)
        return dict(zip(("queries", "keys", "values"), self.spec.tables, strict=True))

    def body(self) -> None:
        query, key, value = (self.add("Gather", [table, "input_ids"], f"{table}:rows") for table in self.weights())
        attended = self.attention(0, query, key, value)
        self.add("Gather", [attended, "logit_indices"], "logits", axis=0)
