"""How many sequences fit and how fast they can go: bounds from bytes, bandwidth and FLOPs.

The decode bound is the roofline of one step: every weight is read once a step and every sequence's KV once, while each
token costs two FLOPs a weight. Measured speed divided by the bound is the efficiency that `fit.py` takes from a bench.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtdecode.errors import ConfigError
from trtdecode.plan.devices import Device

#: Bytes a weight of a linear layer, with its scales (one fp16 scale per 128 weights where in groups).
BYTES_PER_WEIGHT = {
    "f32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int8_weight": 1.0,
    "int4": 0.5 + 2 / 128,
}
#: The type the tensor cores multiply in.
MATMUL_TYPE = {
    "f32": "fp16",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
    "int8": "int8",
    "int8_weight": "fp16",
    "int4": "fp16",
}
BYTES_PER_KV = {"f32": 4.0, "f16": 2.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0 + 2 / 64, "u8": 1.0 + 8 / 64}
#: Held back for contexts, activations and the CUDA runtime.
RESERVED_FRACTION = 0.1


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes of a decoder that capacity depends on."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied_embedding: bool = False
    gated_mlp: bool = True  # three matrices (gate, up, down) rather than two

    @property
    def num_linear_weights(self) -> int:
        """Weights of all layers' matmuls."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        mlp = (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size
        return self.num_layers * (attention + mlp)

    @property
    def num_embedding_weights(self) -> int:
        """One vocabulary matrix; an untied head is a second one."""
        return self.vocab_size * self.hidden_size

    @property
    def num_weights(self) -> int:
        return self.num_linear_weights + self.num_embedding_weights * (1 if self.tied_embedding else 2)

    def kv_bytes_per_token(self, kv_precision: str) -> float:
        """K and V bytes of one token; counts KV heads, not query heads."""
        return 2.0 * self.num_layers * self.num_kv_heads * self.head_dim * _lookup(BYTES_PER_KV, kv_precision, "kv")

    def weight_bytes(self, precision: str) -> float:
        """All weights; embedding and head stay 16-bit when the layers are quantised."""
        per_weight = _lookup(BYTES_PER_WEIGHT, precision, "precision")
        vocabulary = self.num_weights - self.num_linear_weights
        return self.num_linear_weights * per_weight + vocabulary * max(per_weight, 2.0)

    @property
    def head_weights(self) -> int:
        """Weights one decoded token multiplies with: layers and head; an embedding row is a look-up."""
        return self.num_linear_weights + self.num_embedding_weights


@dataclass(frozen=True, slots=True)
class Bounds:
    """What `ranks` devices can hold and do, at best. Times in seconds."""

    ranks: int
    weight_bytes: float  # a rank
    kv_bytes_per_sequence: float  # a rank
    max_sequences: int  # that fit beside the weights; 0: the weights alone do not fit
    sequences: int  # asked for, or as many as fit
    decode_step: float
    decode_tokens_per_s: float  # all sequences together
    prefill_tokens_per_s: float
    limit: str  # "memory bandwidth" or "compute": what bounds decode


def bounds(
    model: Model, device: Device, precision: str, kv_precision: str, context: int, sequences: int, ranks: int = 1
) -> Bounds:
    """Capacity and roofline of `ranks` tensor-parallel devices (weights and KV split evenly; all-reduce not counted).

    Args:
        context: tokens a sequence holds, prompt and output.
        sequences: decoded together; fewer are taken when fewer fit.

    Raises:
        ConfigError: a size is not positive, or KV heads cannot be split over the ranks.
    """
    for name, value in (("context", context), ("concurrency", sequences), ("ranks", ranks)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; must be at least 1")
    if ranks > 1 and model.num_heads % ranks:
        raise ConfigError(f"{model.num_heads} heads cannot be split over {ranks} ranks; choose a divisor")
    weights = model.weight_bytes(precision) / ranks
    # Fewer KV heads than ranks: each rank still holds at least one.
    kv_share = max(1, math.ceil(model.num_kv_heads / ranks)) / model.num_kv_heads
    kv = model.kv_bytes_per_token(kv_precision) * context * kv_share
    free = device.memory_bytes * (1 - RESERVED_FRACTION) - weights
    fit = max(0, int(free // kv))
    running = min(sequences, fit) if fit else 0
    flops = device.matmul_flops(MATMUL_TYPE[precision])
    read = (weights + running * kv) / device.bandwidth
    multiply = 2.0 * model.head_weights / ranks * running / flops
    step = max(read, multiply)
    # A prompt of `context` tokens: two FLOPs a weight and token, and causal attention's 2 x 2 x T / 2 a head value.
    attention = 2.0 * context * model.num_layers * model.num_heads * model.head_dim
    prefill = flops * ranks / (2.0 * model.num_linear_weights + attention)
    return Bounds(
        ranks=ranks,
        weight_bytes=weights,
        kv_bytes_per_sequence=kv,
        max_sequences=fit,
        sequences=running,
        decode_step=step,
        decode_tokens_per_s=running / step if running else 0.0,
        prefill_tokens_per_s=prefill,
        limit="compute" if multiply > read else "memory bandwidth",
    )


def _lookup(table: dict[str, float], key: str, what: str) -> float:
    try:
        return table[key]
    except KeyError:
        raise ConfigError(f"{what}: got {key!r}; must be one of {', '.join(sorted(table))}") from None
