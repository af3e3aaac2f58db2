"""An encoder's plan: one row a device and precision, the recommended one, and its config.pbtxt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trtdecode.errors import ConfigError
from trtdecode.plan.devices import Device
from trtdecode.plan.encoder_capacity import ENCODER_PRECISIONS, Batching, Encoder, batching
from trtdecode.plan.report import runs_on

#: `compute_precision` in config.pbtxt, by the plan's name.
_COMPUTE = {"fp16": "f16", "bf16": "bf16"}
#: The default of max_num_batched_tokens: a smaller one would cut batches that the default does not.
_MIN_BATCHED_TOKENS = 512


@dataclass(frozen=True, slots=True)
class EncoderRow:
    """One way to serve an encoder, on one device."""

    device: Device
    precision: str
    tokens: int  # of each text
    batching: Batching

    @property
    def tokens_per_s(self) -> float:
        return self.batching.texts_per_s * self.tokens

    @property
    def cost_per_million_tokens(self) -> float:
        """Dollars, when full batches are kept up all the time."""
        return self.device.price_per_hour / (self.tokens_per_s * 3600) * 1e6


def plan_encoder(
    encoder: Encoder,
    devices: Iterable[Device],
    *,
    tokens: int,
    concurrency: int,
    latency: float,
    precisions: Iterable[str] = ENCODER_PRECISIONS,
    efficiency: float = 1.0,
) -> list[EncoderRow]:
    """Every device and precision that can hold the encoder, cheapest first. Arguments: see `batching`.

    Raises:
        ConfigError: a size or a precision out of range, or nothing fits: the text gives the bytes needed.
    """
    rows = []
    for device in devices:
        for precision in precisions:
            found = batching(
                encoder,
                device,
                precision,
                tokens=tokens,
                concurrency=concurrency,
                latency=latency,
                efficiency=efficiency,
            )
            if found is not None and runs_on(precision, device.sm):
                rows.append(EncoderRow(device, precision, tokens, found))
    if not rows:
        need = (encoder.weight_bytes("fp16") + encoder.activation_bytes(1, tokens)) / 2**30
        raise ConfigError(f"no device holds this encoder in these precisions ({need:.1f} GiB in fp16); add a device")
    return sorted(rows, key=lambda row: (row.cost_per_million_tokens, ENCODER_PRECISIONS.index(row.precision)))


def recommend_encoder(rows: list[EncoderRow]) -> EncoderRow:
    """The less lossy precision within 10 % of the lowest cost."""
    near = [row for row in rows if row.cost_per_million_tokens <= rows[0].cost_per_million_tokens * 1.1]
    return min(near, key=lambda row: ENCODER_PRECISIONS.index(row.precision))


def encoder_config_pbtxt(row: EncoderRow) -> str:
    """A config.pbtxt for one instance on one device."""
    sizes = row.batching
    parameters = {
        "executor": "torch",  # engines of encoders are built and reported, not served
        "compute_precision": _COMPUTE[row.precision],
        # A full batch of such texts is one run of the executor.
        "max_num_batched_tokens": str(max(_MIN_BATCHED_TOKENS, sizes.max_batch_size * row.tokens)),
    }
    lines = [
        'backend: "trtdecode"',
        f"max_batch_size: {sizes.max_batch_size}",
        "instance_group [ { count: 1, kind: KIND_GPU } ]",
    ]
    if sizes.max_batch_size > 1:
        delay = round(sizes.max_queue_delay * 1e6)
        preferred = ", ".join(map(str, sizes.preferred_batch_sizes))
        batcher = f"preferred_batch_size: [ {preferred} ] max_queue_delay_microseconds: {delay}" if delay else ""
        lines.append(f"dynamic_batching {{ {batcher} }}")
    lines += [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    return "\n".join(lines) + "\n"
