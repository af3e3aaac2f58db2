"""What a PagedAttention node says about itself: the one place that knows the operator's attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtdecode.errors import ManifestError, UnsupportedError


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The attributes of one `trtdecode::PagedAttention`, under their own names."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int = 0  # a query sees itself and the `sliding_window - 1` keys before it; 0: all
    softcap: float = 0.0  # scores become softcap * tanh(scores / softcap); 0: off
    alibi_slopes: tuple[float, ...] = ()  # one a head (Press et al. 2022); empty: off

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any], node_name: str) -> AttentionSpec:
        """Checks and converts a node's attributes.

        Raises:
            ManifestError: an attribute is missing or the heads do not divide.
            UnsupportedError: an attribute that this version does not know, so that none is dropped silently.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(attributes) - set(fields))
        if unknown:
            raise UnsupportedError(
                f"PagedAttention {node_name!r}: unknown attribute {', '.join(unknown)} (known: {', '.join(fields)}); "
                "import the model again with this trtdecode"
            )
        required = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
        missing = sorted(required - set(attributes))
        if missing:
            raise ManifestError(
                f"PagedAttention {node_name!r}: attribute {', '.join(missing)} is missing; import the model again"
            )
        spec = cls(**{**attributes, "alibi_slopes": tuple(attributes.get("alibi_slopes", ()))})
        if spec.num_heads % spec.num_kv_heads:
            raise ManifestError(
                f"PagedAttention {node_name!r}: num_heads {spec.num_heads} is not a multiple of "
                f"num_kv_heads {spec.num_kv_heads}; import the model again"
            )
        return spec
