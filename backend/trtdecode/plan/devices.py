"""The device table: what a GPU has and costs. Reads `devices.toml` or a file of the same form."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from trtdecode.errors import ConfigError

DEFAULT_TABLE = Path(__file__).with_name("devices.toml")


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. Bandwidth in bytes/s, throughput in FLOP/s (dense), price in dollars an hour."""

    name: str
    sm: int
    memory_bytes: float
    bandwidth: float
    flops: dict[str, float]  # by matmul type
    price_per_hour: float

    def matmul_flops(self, matmul_type: str) -> float:
        """Throughput of a matmul type; 16-bit types stand in for each other, a missing one falls back to fp16."""
        return self.flops.get(matmul_type) or self.flops["fp16"]


def load_devices(path: Path = DEFAULT_TABLE) -> dict[str, Device]:
    """All devices of a table, by name.

    Raises:
        ConfigError: the file is not readable, or a device lacks a field or has one that is not positive.
    """
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not readable as a device table ({error})") from error
    return {name: _device(path, name, fields) for name, fields in raw.items()}


def _device(path: Path, name: str, fields: dict[str, object]) -> Device:
    def positive(key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ConfigError(f"{path}: device {name!r}: {key} is {value!r}; must be a number above 0")
        return float(value)

    throughput = fields.get("tflops")
    if not isinstance(throughput, dict) or "fp16" not in throughput:
        raise ConfigError(f"{path}: device {name!r}: tflops must be a table that holds at least fp16")
    return Device(
        name=name,
        sm=int(positive("sm", fields.get("sm"))),
        memory_bytes=positive("memory_gib", fields.get("memory_gib")) * 2**30,
        bandwidth=positive("bandwidth_gb_s", fields.get("bandwidth_gb_s")) * 1e9,
        flops={key: positive(f"tflops.{key}", value) * 1e12 for key, value in throughput.items()},
        price_per_hour=positive("price_per_hour", fields.get("price_per_hour")),
    )
