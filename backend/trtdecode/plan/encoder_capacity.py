"""Memory and bounds of an encoder's batches, and the sizes for Triton's dynamic batcher that follow from them.

A batch of B texts of T tokens reads every weight once and costs two FLOPs a weight and token, and 4 T^2 hidden a layer
and text for attention. Up to the ridge, where both take equally long, a text more costs nothing; beyond, time grows
with the batch and throughput does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtdecode.errors import ConfigError
from trtdecode.plan.capacity import BYTES_PER_WEIGHT, MATMUL_TYPE, RESERVED_FRACTION
from trtdecode.plan.devices import Device

#: What the torch executor computes in on a GPU beside f32; the one that loses less first.
ENCODER_PRECISIONS = ("fp16", "bf16")
MAX_BATCH_SIZE = 1024


@dataclass(frozen=True, slots=True)
class Encoder:
    """The sizes of an encoder that capacity depends on."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    vocab_size: int
    num_positions: int  # tokens of the longest text
    num_table_rows: int = 0  # learned positions and token types; 0 where positions are rotary
    num_labels: int = 0  # 0: embeddings
    gated_mlp: bool = False

    @property
    def num_linear_weights(self) -> int:
        """Weights that a token multiplies with."""
        mlp = (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size
        return self.num_layers * (4 * self.hidden_size**2 + mlp)

    @property
    def num_weights(self) -> int:
        """With the look-up tables, and the head of rerankers and classifiers; without norms and biases."""
        head = self.hidden_size**2 + self.hidden_size * self.num_labels if self.num_labels else 0
        return self.num_linear_weights + head + (self.vocab_size + self.num_table_rows) * self.hidden_size

    def weight_bytes(self, precision: str) -> float:
        """All weights. Raises ConfigError for a precision that encoders are not served in."""
        if precision not in ENCODER_PRECISIONS:
            raise ConfigError(
                f"--precision: got {precision!r}; an encoder on a GPU is computed in {' or '.join(ENCODER_PRECISIONS)}"
            )
        return self.num_weights * BYTES_PER_WEIGHT[precision]

    def flops(self, tokens: int) -> float:
        """Of one text."""
        return 2.0 * self.num_linear_weights * tokens + 4.0 * self.num_layers * self.hidden_size * tokens**2

    def activation_bytes(self, batch: int, tokens: int) -> float:
        """What is alive at once in the widest place of a layer: attention's scores, or the MLP. 16-bit values."""
        attention = tokens * 4 * self.hidden_size + self.num_heads * tokens**2 * 2  # before and after softmax
        mlp = tokens * (self.hidden_size + (3 if self.gated_mlp else 2) * self.intermediate_size)
        return 2.0 * batch * max(attention, mlp)


def batch_seconds(encoder: Encoder, device: Device, precision: str, batch: int, tokens: int) -> float:
    """At best: the longer of reading the weights and multiplying."""
    read, multiply = _roofline(encoder, device, precision, tokens)
    return max(read, batch * multiply)


def _roofline(encoder: Encoder, device: Device, precision: str, tokens: int) -> tuple[float, float]:
    """Seconds of reading the weights, and of one text's arithmetic."""
    read = encoder.weight_bytes(precision) / device.bandwidth
    return read, encoder.flops(tokens) / device.matmul_flops(MATMUL_TYPE[precision])


@dataclass(frozen=True, slots=True)
class Batching:
    """What dynamic_batching should be told, and what to expect of a full batch. Times in seconds, as expected."""

    max_batch_size: int
    preferred_batch_sizes: tuple[int, ...]  # ascending; Triton forms the largest that is full
    max_queue_delay: float
    batch_seconds: float  # of max_batch_size texts
    texts_per_s: float
    memory_bytes: float  # weights and activations
    limit: str  # of a full batch: "memory bandwidth" or "compute"


def batching(
    encoder: Encoder,
    device: Device,
    precision: str,
    *,
    tokens: int,
    concurrency: int,
    latency: float,
    efficiency: float = 1.0,
) -> Batching | None:
    """Sizes, all powers of two.

    max_batch_size      the largest whose batch takes half of the latency at most (a text may have to wait for the batch
                        that runs, and then is in the next), that fits, and no more than can be asked for at a time
    preferred           from the smallest at which multiplying takes as long as reading the weights (below it more texts
                        in a batch cost nothing) to the largest
    max_queue_delay     half of the time that the smallest of these takes; none where a single text is one already

    Args:
        tokens: of each text.
        concurrency: texts asked for at a time.
        latency: seconds from a text's arrival to its answer, under load.
        efficiency: measured speed over bound.

    Returns:
        None where the weights and one text do not fit.

    Raises:
        ConfigError: a size out of range, naming it.
    """
    for name, value in (("--context", tokens), ("--concurrency", concurrency)):
        if value < 1:
            raise ConfigError(f"{name}: got {value}; must be at least 1")
    if tokens > encoder.num_positions:
        raise ConfigError(f"--context: got {tokens}; this encoder's longest text has {encoder.num_positions} tokens")
    if latency <= 0:
        raise ConfigError(f"--latency-ms: got {latency * 1000:g}; must be above 0")

    read, multiply = _roofline(encoder, device, precision, tokens)
    usable = device.memory_bytes * (1 - RESERVED_FRACTION)

    def seconds(batch: int) -> float:
        return max(read, batch * multiply) / efficiency

    def memory(batch: int) -> float:
        return encoder.weight_bytes(precision) + encoder.activation_bytes(batch, tokens)

    def is_fine(batch: int) -> bool:
        return batch <= min(concurrency, MAX_BATCH_SIZE) and seconds(batch) <= latency / 2 and memory(batch) <= usable

    if memory(1) > usable:
        return None
    largest = 1
    while is_fine(2 * largest):
        largest *= 2
    preferred = 1
    while preferred < largest and preferred * multiply < read:
        preferred *= 2
    return Batching(
        max_batch_size=largest,
        preferred_batch_sizes=tuple(2**power for power in range(preferred.bit_length() - 1, largest.bit_length())),
        max_queue_delay=seconds(preferred) / 2 if preferred > 1 else 0.0,
        batch_seconds=seconds(largest),
        texts_per_s=largest / seconds(largest),
        memory_bytes=memory(largest),
        limit="compute" if largest * multiply > read else "memory bandwidth",
    )
