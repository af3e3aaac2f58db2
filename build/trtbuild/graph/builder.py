"""Writes an ONNX graph operator by operator. Families use it through the blocks beside this file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from trtdecode.errors import CheckpointError
from trtdecode.executor.base import OPERATOR_DOMAIN

from trtbuild.checkpoint import Weights, load
from trtbuild.graph.weight_file import WeightFile
from trtbuild.quantize.int8 import DEFAULT_GROUP_SIZE

#: Swish came with 24; RMSNormalization and RotaryEmbedding with 23.
OPSET_VERSION = 24
OPERATOR_VERSION = 1
IR_VERSION = 11

#: What an attribute of a node may be.
Attribute = int | float | str | Sequence[int] | Sequence[float]


class GraphBuilder:
    """One graph being written.

    Args:
        name: of the graph, for people.
        weights: where `weight` and `expect` look tensors up.
        file: receives the large initializers.
        precision: storage of matrices, "f32", "int8" or "int4" (see matrix.py).
        group_size: weights that share a scale where a matrix is quantised here; 0: those of a whole row.
    """

    def __init__(
        self, name: str, weights: Weights, file: WeightFile, precision: str, group_size: int = DEFAULT_GROUP_SIZE
    ) -> None:
        self.weights = weights
        self.file = file
        self.precision = precision
        self.group_size = group_size
        self.graph = ir.Graph(
            [], [], nodes=[], name=name, opset_imports={"": OPSET_VERSION, OPERATOR_DOMAIN: OPERATOR_VERSION}
        )
        self.num_packed = 0  # matrices stored in 4-bit codes
        self._scopes: list[str] = []
        self._counts: dict[str, int] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    # -- structure ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes the names of nodes and values made inside, so that layer reports point at the model's parts."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
        """Declares a graph input; strings are symbolic dimensions."""
        value = ir.val(name, dtype=dtype, shape=tuple(shape))
        self.graph.inputs.append(value)
        return value

    def output(self, name: str, value: ir.Value, dtype: ir.DataType, shape: Sequence[int | str]) -> None:
        """Declares a graph output."""
        value.name = name
        value.shape = ir.Shape(shape)
        value.dtype = dtype
        self.graph.outputs.append(value)

    # -- nodes --------------------------------------------------------------------------------------------------

    def op(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Attribute) -> ir.Value:
        """Appends a node with one output and returns it."""
        return self.multi_op(op_type, *inputs, num_outputs=1, domain=domain, **attributes)[0]

    def multi_op(
        self, op_type: str, *inputs: ir.Value | None, num_outputs: int, domain: str = "", **attributes: Attribute
    ) -> Sequence[ir.Value]:
        """Appends a node with several outputs."""
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=num_outputs, name=self._name(op_type))
        for index, value in enumerate(node.outputs):
            value.name = f"{node.name}.{index}" if num_outputs > 1 else node.name
        self.graph.append(node)
        outputs: Sequence[ir.Value] = node.outputs
        return outputs

    def _name(self, op_type: str) -> str:
        base = "/".join([*self._scopes, op_type])
        count = self._counts.get(base, 0)
        self._counts[base] = count + 1
        return base if count == 0 else f"{base}_{count}"

    # -- constants and weights ----------------------------------------------------------------------------------

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike) -> ir.Value:
        """A small constant inside the ONNX file; equal ones are one initializer."""
        array = np.asarray(values, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self._initializer(ir.tensor(array, name=f"constant_{len(self._constants)}"))
        return self._constants[key]

    def ints(self, *values: int) -> ir.Value:
        """An i64 vector: axes, shapes."""
        return self.constant(values, np.int64)

    def scalar(self, value: float) -> ir.Value:
        """An f32 scalar."""
        return self.constant(value, np.float32)

    def store(self, name: str, shape: tuple[int, ...], pieces: Iterable[npt.NDArray[Any]]) -> ir.Value:
        """An initializer in the external data file, given in pieces along its first axis; one per name."""
        present = self.graph.initializers.get(name)
        if present is not None:
            return present
        return self._initializer(self.file.append(name, shape, pieces))

    def store_four_bit(self, name: str, codes: npt.NDArray[Any]) -> ir.Value:
        """An INT4 or UINT4 initializer in the external data file, from int8 or uint8 codes."""
        present = self.graph.initializers.get(name)
        return present if present is not None else self._initializer(self.file.append_four_bit(name, codes))

    def weight(self, name: str, shape: tuple[int, ...], *, offset: float = 0.0) -> ir.Value:
        """A float32 tensor of the checkpoint as it is (norms, biases), plus `offset` where a family stores w - 1."""
        self.expect(name, shape)
        return self.store(name, shape, [load(self.weights, name) + np.float32(offset)])

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises CheckpointError unless the checkpoint holds `name` with this shape."""
        actual = self.weights.shape(name)
        if actual != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {list(actual)}, but the config asks for {list(shape)}; "
                "config and weights are of different models"
            )

    def _initializer(self, tensor: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(
            name=tensor.name, shape=ir.Shape(tensor.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        self.graph.register_initializer(value)
        return value
