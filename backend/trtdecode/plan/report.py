"""The plan itself: one row a device and precision, the recommended one, and its config.pbtxt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trtdecode.errors import ConfigError
from trtdecode.plan.capacity import BYTES_PER_WEIGHT, Bounds, Model, bounds
from trtdecode.plan.devices import Device

#: Quantisation that loses least comes first; the recommendation takes the first that is within 10 % of the cheapest.
PREFERENCE = ("bf16", "fp16", "fp8", "int8", "int8_weight", "int4")
RANKS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Row:
    """One way to serve the model."""

    device: Device
    precision: str
    kv_precision: str
    bounds: Bounds
    efficiency: float
    replicas: int  # of `bounds.ranks` devices each, for the concurrency asked for

    @property
    def tokens_per_s(self) -> float:
        """Expected of one replica: bound times efficiency."""
        return self.bounds.decode_tokens_per_s * self.efficiency

    @property
    def num_devices(self) -> int:
        return self.replicas * self.bounds.ranks

    @property
    def price_per_hour(self) -> float:
        return self.num_devices * self.device.price_per_hour

    @property
    def cost_per_million_tokens(self) -> float:
        """Dollars for a million generated tokens when the concurrency is kept up all the time."""
        return self.price_per_hour / (self.tokens_per_s * self.replicas * 3600) * 1e6


def plan(
    model: Model,
    devices: Iterable[Device],
    *,
    context: int,
    concurrency: int,
    precisions: Iterable[str] = PREFERENCE,
    kv_precision: str = "fp16",
    efficiency: float = 1.0,
) -> list[Row]:
    """Every device and precision that can hold the model, cheapest first.

    The smallest tensor-parallel degree of 1, 2, 4, 8 that fits at least one sequence is taken; replicas are added
    until all `concurrency` sequences run. A precision the device cannot run (see `support.py`) is left out.

    Raises:
        ConfigError: a size out of range, or nothing fits: the text gives the bytes needed.
    """
    rows = []
    for device in devices:
        for precision in precisions:
            if not runs_on(precision, device.sm):
                continue
            row = _smallest(model, device, precision, kv_precision, context, concurrency, efficiency)
            if row is not None:
                rows.append(row)
    if not rows:
        need = model.weight_bytes("int4") / 2**30
        raise ConfigError(
            f"no device holds this model even on {RANKS[-1]} ranks (int4 weights need {need:.1f} GiB); add a device"
        )
    return sorted(rows, key=lambda row: (row.cost_per_million_tokens, PREFERENCE.index(row.precision)))


def recommend(rows: list[Row]) -> Row:
    """The least lossy precision within 10 % of the lowest cost."""
    limit = rows[0].cost_per_million_tokens * 1.1
    return min(
        (row for row in rows if row.cost_per_million_tokens <= limit), key=lambda row: PREFERENCE.index(row.precision)
    )


def runs_on(precision: str, sm: int) -> bool:
    """FP8 matmuls exist from SM 89 on, bfloat16 from SM 80 on."""
    if precision not in BYTES_PER_WEIGHT:
        raise ConfigError(f"precision: got {precision!r}; must be one of {', '.join(sorted(BYTES_PER_WEIGHT))}")
    return sm >= {"fp8": 89, "bf16": 80}.get(precision, 0)


def config_pbtxt(row: Row, context: int) -> str:
    """A config.pbtxt for one replica of a row."""
    kv_bytes = int(row.bounds.kv_bytes_per_sequence * row.bounds.sequences)
    parameters = {
        "executor": "tensorrt" if row.bounds.ranks == 1 else "torch",  # ranks are served by torch
        "precision": row.precision,
        "kv_cache_bytes": str(kv_bytes),
        "max_num_seqs": str(row.bounds.sequences),
        "max_context_len": str(context),
    }
    kind = "KIND_MODEL" if row.bounds.ranks > 1 else "KIND_GPU"
    if row.bounds.ranks > 1:
        parameters["tensor_parallel_size"] = str(row.bounds.ranks)
    lines = ['backend: "trtdecode"', "max_batch_size: 0", f"instance_group [ {{ count: 1, kind: {kind} }} ]"]
    lines += [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    return "\n".join(lines) + "\n"


def _smallest(
    model: Model, device: Device, precision: str, kv: str, context: int, concurrency: int, efficiency: float
) -> Row | None:
    for ranks in RANKS:
        if ranks > 1 and model.num_heads % ranks:
            continue
        found = bounds(model, device, precision, kv, context, concurrency, ranks)
        if found.max_sequences:
            replicas = -(-concurrency // found.sequences)
            return Row(device, precision, kv, found, efficiency, replicas)
    return None
