"""What `trtdecode gateway` is told. Everything that changes answers or limits callers is off by default."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trtdecode.errors import ConfigError

KEYS_VARIABLE = "TRTDECODE_API_KEYS"


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """One gateway process. Sizes in bytes, times in seconds."""

    triton_urls: tuple[str, ...] = ("127.0.0.1:8001",)  # gRPC; more than one: replicas
    metrics_urls: tuple[str, ...] = ()  # http://host:port/metrics of each, for the engine room
    model_repository: Path | None = None  # tokenizers and chat templates are read from it
    api_keys: tuple[str, ...] = ()  # none: open
    requests_per_minute: int = 0  # a key; 0: no limit
    max_concurrency: int = 0  # requests of one key at a time; 0: no limit
    max_body_bytes: int = 4 << 20
    cors_origins: tuple[str, ...] = ()
    request_timeout: float = 600.0
    log_prompts: bool = False
    response_cache_entries: int = 0  # 0: off
    response_cache_ttl: float = 300.0
    semantic_cache_model: str = ""  # name of a served embedding model; "": off
    semantic_cache_threshold: float = 0.95
    routes: Path | None = None  # routing rules, a TOML file
    split_log: Path | None = None  # answers of an A/B split's targets side by side, JSONL
    prefix_affinity: bool = False  # conversations go back to the replica that holds their blocks

    def __post_init__(self) -> None:
        if not self.triton_urls:
            raise ConfigError("triton_urls is empty; name at least one gRPC address host:port")
        for name in ("requests_per_minute", "max_concurrency", "response_cache_entries"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; must not be negative")
        for name in ("max_body_bytes", "request_timeout", "response_cache_ttl"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; must be above 0")
        if not 0 < self.semantic_cache_threshold <= 1:
            raise ConfigError(f"semantic_cache_threshold is {self.semantic_cache_threshold}; must be in (0, 1]")


def read_api_keys(file: Path | None) -> tuple[str, ...]:
    """Keys from a file (one a line, # comments) and from TRTDECODE_API_KEYS (comma-separated).

    Raises:
        ConfigError: the file is not readable, holds no key, or a key is shorter than 16 characters.
    """
    keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key.strip()]
    if file is not None:
        try:
            lines = file.read_text("utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"API key file {file}: not readable ({error.strerror})") from error
        found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not found:
            raise ConfigError(f"API key file {file}: holds no key; write one a line")
        keys += found
    for index, key in enumerate(keys, 1):
        if len(key) < 16:
            raise ConfigError(f"API key {index} has {len(key)} characters; use at least 16 random ones")
    return tuple(dict.fromkeys(keys))
