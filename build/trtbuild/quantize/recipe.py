"""What one build does to each node: the engine precision, the exceptions of a mixed-precision file, the methods."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

import onnx_ir as ir
from trtdecode.errors import ConfigError
from trtdecode.executor.base import GRAPH_OUTPUT

from trtbuild.quantize.linears import Linear
from trtbuild.quantize.mixed import MixedPrecision

INT4_METHODS = ("rtn", "awq", "gptq")
ACTIVATION_RANGES = ("absmax", "percentile")

#: Names of float types in precisions and in tensor specs.
_FLOAT_NAMES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a graph is quantised.

    `scheme_of` gives a linear layer one of: "float", "int8_weight" and "int4" (weights only), "fp8" and "int8"
    (weights and inputs).
    """

    precision: str
    mixed: MixedPrecision = field(default_factory=MixedPrecision)
    int4_method: str = "awq"
    act_order: bool = False  # GPTQ only
    activation_range: str = "absmax"
    percentile: float = 99.99  # of |input|, with activation_range "percentile"
    smoothing: float = 0.5  # SmoothQuant's strength for int8; 0 is off
    max_input_error: float = 0.02  # a layer whose input loses more by quantisation keeps float inputs (int8_weight)

    def __post_init__(self) -> None:
        if self.int4_method not in INT4_METHODS:
            raise ConfigError(f"int4 method {self.int4_method!r}; use one of {', '.join(INT4_METHODS)}")
        if self.activation_range not in ACTIVATION_RANGES:
            raise ConfigError(f"activation range {self.activation_range!r}; use one of {', '.join(ACTIVATION_RANGES)}")
        if not 50 < self.percentile <= 100:
            raise ConfigError(f"percentile {self.percentile}; must be in (50, 100]")

    @property
    def float_type(self) -> str:
        """Type of everything that is not quantised: "bf16" for precision bf16, else "f16"."""
        return "bf16" if self.precision == "bf16" else "f16"

    @property
    def quantizes_embedding(self) -> bool:
        """Whether the embedding table is INT8. By default it is where the rest is quantised: it is the largest matrix
        of a small model, and a head over INT8 rows costs no visible accuracy."""
        wanted = self.mixed.embedding
        return wanted == "int8" if wanted is not None else _scheme(self.precision) != "float"

    @property
    def needs_calibration(self) -> bool:
        """Whether any scheme that can occur asks for statistics of activations."""
        return any(map(self.calibrates, self._possible_schemes()))

    def calibrates(self, scheme: str) -> bool:
        """Whether a scheme asks for statistics of activations."""
        return scheme in ("fp8", "int8") or (scheme == "int4" and self.int4_method != "rtn")

    @property
    def needs_hessians(self) -> bool:
        """Whether any layer can be quantised by GPTQ."""
        return "int4" in self._possible_schemes() and self.int4_method == "gptq"

    def _possible_schemes(self) -> set[str]:
        return {_scheme(self.precision), *(_scheme(precision) for _, precision in self.mixed.entries)}

    def scheme_of(self, linear: Linear) -> str:
        """The scheme of one linear layer."""
        asked = self.mixed.of_node(linear.node)
        scheme = _scheme(asked if asked is not None else self.precision)
        if asked is None and scheme != "float" and is_head(linear):
            return "int8_weight"  # logits: every token's choice depends on this one layer
        return scheme

    def node_types(self, graph: ir.Graph) -> dict[str, str]:
        """Float types that the mixed-precision file asks for single nodes, as `cast_floats` wants them."""
        asked = {node.name or "": self.mixed.of_node(node) for node in graph}
        return {name: _FLOAT_NAMES[precision] for name, precision in asked.items() if precision in _FLOAT_NAMES}

    def key(self) -> str:
        """Everything that changes the result, as text for cache keys."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def is_head(linear: Linear) -> bool:
    """Whether the layer writes the graph's logits."""
    return any(value.name == GRAPH_OUTPUT for value in linear.node.outputs)


def _scheme(precision: str) -> str:
    return "float" if precision in _FLOAT_NAMES else precision
