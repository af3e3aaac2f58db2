"""Finds the named patterns of a graph whose fusion is checked after the build (see expectations.py).

Run before quantisation, on the graph as the rewrite rules leave it: what later steps put between two nodes (Q/DQ,
casts) must not break the fusion either.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from trtbuild.quantize.linears import Linear, find_linears

NORMS = frozenset({"LayerNormalization", "RMSNormalization"})
GATES = frozenset({"Swish", "Gelu", "Sigmoid", "Relu"})


class Rule(enum.Enum):
    """What "fused" means for a pattern."""

    TOGETHER = "all nodes in one kernel"
    ABSORBED = "the first node in one kernel with a matmul or a norm"
    IN_MATMUL = "all nodes in one matmul kernel"
    MATMUL_TYPE = "a matmul kernel that reads the type"
    COMPUTES_IN = "every kernel of the node handles the type"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One occurrence of a named pattern."""

    name: str
    nodes: tuple[str, ...]  # ONNX node names
    rule: Rule
    required: bool  # a build without it fails; otherwise the report says what happened
    dtype: str = ""  # TensorRT's name of a type, for the rules about types


def find_patterns(graph: ir.Graph, schemes: dict[str, str]) -> list[Pattern]:
    """All fusion patterns of a graph.

    Args:
        schemes: what each linear layer will be quantised to, by node name ("float" where missing).
    """
    found = list(_norm_activation(graph))
    found += _residual_norm(graph)
    found += _gated_product(graph)
    for linear in find_linears(graph):
        found += _epilogue(linear, schemes.get(linear.name, "float"))
    return found


def _norm_activation(graph: ir.Graph) -> Iterator[Pattern]:
    for node in graph:
        if node.op_type in NORMS:
            for user in _users(node):
                if user.op_type in GATES:
                    name = "layernorm_gelu" if user.op_type == "Gelu" else "norm_activation"
                    yield Pattern(name, _names(node, user), Rule.TOGETHER, required=True)


def _residual_norm(graph: ir.Graph) -> Iterator[Pattern]:
    """The residual Add: fused into the matmul before it or into the norm after it, but no kernel of its own."""
    for node in graph:
        if node.op_type == "Add" and any(user.op_type in NORMS for user in _users(node)):
            norm = next(user for user in _users(node) if user.op_type in NORMS)
            yield Pattern("residual_norm", _names(node, norm), Rule.ABSORBED, required=True)


def _gated_product(graph: ir.Graph) -> Iterator[Pattern]:
    """act(gate) * up after one merged matmul."""
    for node in graph:
        if node.op_type == "Mul":
            gates = [value.producer() for value in node.inputs if value is not None]
            gate = next((one for one in gates if one is not None and one.op_type in GATES), None)
            if gate is not None:
                name = "gate_up_silu" if gate.op_type == "Swish" else "gate_up_activation"
                yield Pattern(name, _names(gate, node), Rule.TOGETHER, required=True)
                linear = _linear_before(gate)
                if linear is not None:
                    yield Pattern(f"{name}_in_matmul", _names(linear, gate, node), Rule.IN_MATMUL, required=False)


def _epilogue(linear: Linear, scheme: str) -> Iterator[Pattern]:
    """Bias, activation or softmax right after a matmul."""
    last, chain = linear.node, [linear.node]
    for user in _users(last):
        if user.op_type == "Add" and _adds_vector(user, last):
            chain.append(user)
            last = user
            break
    for user in _users(last):
        nodes = _names(*chain, user)
        if user.op_type in GATES:
            has_bias = len(chain) > 1 or len(linear.node.inputs) > 2
            name = f"matmul{'_bias' if has_bias else ''}_{user.op_type.lower()}"
            yield Pattern(name, nodes, Rule.IN_MATMUL, required=scheme == "float")
        elif user.op_type == "Softmax":
            yield Pattern("fused_linear_softmax", nodes, Rule.IN_MATMUL, required=False)


def find_quantized_patterns(graph: ir.Graph, schemes: dict[str, str], tensorrt_float: str) -> list[Pattern]:
    """Patterns that exist only after quantisation: quantised norms, and that each matmul runs in its type.

    Args:
        tensorrt_float: TensorRT's name of the graph's float type.
    """
    found = [
        Pattern("norm_quantize", _names(node, user), Rule.TOGETHER, required=True)
        for node in graph
        if node.op_type in NORMS
        for user in _users(node)
        if user.op_type == "QuantizeLinear"
    ]
    types = {"int8": "Int8", "int8_weight": "Int8", "fp8": "FP8", "int4": "Int4", "float": tensorrt_float}
    types["int4_pair"] = types["int4"]
    for name, scheme in schemes.items():
        found.append(Pattern(f"{scheme}_matmul", (name,), Rule.MATMUL_TYPE, required=True, dtype=types[scheme]))
    return found


def find_islands(node_types: dict[str, str]) -> list[Pattern]:
    """One pattern for each node that a mixed-precision file gives a float type of its own."""
    names = {"f32": "Float", "f16": "Half", "bf16": "BFloat16"}
    return [
        Pattern(f"{type_name}_island", (node,), Rule.COMPUTES_IN, required=True, dtype=names[type_name])
        for node, type_name in node_types.items()
    ]


def _users(node: ir.Node) -> list[ir.Node]:
    return [user for value in node.outputs for user in value.consumers()]


def _names(*nodes: ir.Node) -> tuple[str, ...]:
    return tuple(node.name or "" for node in nodes)


def _linear_before(gate: ir.Node) -> ir.Node | None:
    """The matmul whose output, split in two, is gate and up."""
    source = gate.inputs[0].producer() if gate.inputs[0] is not None else None
    if source is not None and source.op_type == "Split" and source.inputs[0] is not None:
        source = source.inputs[0].producer()
    return source if source is not None and source.op_type in ("MatMul", "Gemm") else None


def _adds_vector(add: ir.Node, matmul: ir.Node) -> bool:
    """Whether the other side of an Add is a stored vector: a bias, not a residual."""
    others = [value for value in add.inputs if value is not None and value.producer() is not matmul]
    return (
        len(others) == 1 and others[0].is_initializer() and others[0].shape is not None and others[0].shape.rank() == 1
    )
