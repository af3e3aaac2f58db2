"""Feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from trtdecode.errors import UnsupportedError

from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.linear import linear, merged_linear
from trtbuild.graph.share import Size, share_of

Activation = Callable[[GraphBuilder, ir.Value], ir.Value]

#: Hugging Face's `hidden_act` -> operator.
ACTIVATIONS: dict[str, Activation] = {
    "silu": lambda g, x: g.op("Swish", x),
    "swish": lambda g, x: g.op("Swish", x),
    "gelu": lambda g, x: g.op("Gelu", x),
    "gelu_new": lambda g, x: g.op("Gelu", x, approximate="tanh"),
    "gelu_fast": lambda g, x: g.op("Gelu", x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda g, x: g.op("Gelu", x, approximate="tanh"),
    "relu": lambda g, x: g.op("Relu", x),
}


def activation(name: str) -> Activation:
    """The activation called `name` in a config. Raises UnsupportedError listing those known."""
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise UnsupportedError(
            f"activation {name!r} is not known; known: {', '.join(sorted(ACTIVATIONS))}. Use a model with one of these"
        ) from None


def gated_mlp(g: GraphBuilder, x: ir.Value, name: str, width: int, inner: Size, act: Activation) -> ir.Value:
    """down(act(gate(x)) * up(x)) with gate and up as one matmul."""
    both = merged_linear(g, x, (f"{name}.gate_proj", f"{name}.up_proj"), width, (inner, inner), f"{name}.gate_up_proj")
    return gated_output(g, both, f"{name}.down_proj", width, inner, act)


def gated_output(
    g: GraphBuilder, both: ir.Value, name: str, width: int, inner: Size, act: Activation, *, reduces: bool = True
) -> ir.Value:
    """The second half of a gated MLP, from gate and up side by side [T, 2 * inner]; `reduces` as in `linear`."""
    num_units = share_of(inner).size
    gate, up = g.multi_op("Split", both, g.ints(num_units, num_units), num_outputs=2, axis=1)
    return linear(g, g.op("Mul", act(g, gate), up), name, inner, width, reduces=reduces)


def plain_mlp(
    g: GraphBuilder, x: ir.Value, names: tuple[str, str], width: int, inner: Size, act: Activation
) -> ir.Value:
    """second(act(first(x)))."""
    return linear(g, act(g, linear(g, x, names[0], width, inner)), names[1], inner, width)
