"""What config.pbtxt asks for, as one frozen object.

`ServingConfig` holds our `parameters`; its field names *are* the parameter names, and its defaults are the defaults.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtdecode.errors import ConfigError

EXECUTORS = ("auto", "openvino", "tensorrt", "torch")
#: Of weights: the graphs' names, and the engines' (support.ENGINE_PRECISIONS).
PRECISIONS = ("auto", "f32", "f16", "bf16", "fp16", "fp8", "int8", "int8_weight", "int4")
COMPUTE_PRECISIONS = ("auto", "f32", "int8", "bf16", "f16", "mixed")
KV_CACHE_PRECISIONS = ("auto", "f32", "u8", "f16", "bf16", "fp8", "int8")
#: Of the openvino executor; "native" is our own.
ATTENTION_OPERATORS = ("auto", "native", "openvino")
#: vLLM's names.
RANK_STARTERS = ("auto", "mp", "ray")

#: Keys of `parameters` that belong to Triton and its Python backend; they pass through unread.
TRITON_PARAMETERS = frozenset({"FORCE_CPU_ONLY_INPUT_TENSORS", "EXECUTION_ENV_PATH", "TRITON_BATCH_STRATEGY_PATH"})

_SIZE = re.compile(r"(\d+)\s*([KMGT]i?B?|B)?", re.IGNORECASE)
_SIZE_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """One replica's configuration. Sizes in bytes, times in milliseconds."""

    executor: str = "auto"  # auto, openvino, tensorrt, torch
    precision: str = "auto"  # weights: auto takes the best the executor and the version have
    compute_precision: str = "auto"  # f32 (exact, independent of the batch), int8, bf16, mixed (CPU); f16, bf16 (GPU)
    kv_cache_precision: str = "auto"  # auto, f32, u8 (CPU); f16, fp8, int8 (GPU)
    kv_cache_bytes: int = 0  # 0: kv_cache_fraction of what is free
    kv_cache_fraction: float = 0.0  # 0: the executor's default (CPU 0.1 of RAM, GPU 0.9 of free memory)
    swap_space_bytes: int = 0  # 0: preempt by recompute
    max_num_seqs: int = 64  # sequences in one step
    max_num_batched_tokens: int = 512  # tokens in one step
    max_context_len: int = 0  # 0: the model's own
    max_queue_size: int = 1024  # waiting requests; one more gets UNAVAILABLE
    default_timeout_ms: float = 0.0  # 0: none
    max_timeout_ms: float = 0.0  # 0: no cap on what a request may ask for
    priority_levels: int = 0  # 0: any integer; n: requests may use 1..n
    default_max_tokens: int = 0  # 0: up to the end of the context
    enable_prefix_caching: bool = True
    num_threads: int = 0  # 0: physical cores
    attention: str = "auto"  # operator of the openvino executor: native (ours) where it is built and fits, or openvino
    watchdog_ms: float = 30_000.0  # a longer step dumps the flight recorder; 0: off
    recorder_steps: int = 256
    verify_checksums: bool = True
    build_missing_engines: bool = False
    tensor_parallel_size: int = 0  # 0: as the version was imported; anything else must be just that
    pipeline_parallel_size: int = 0
    distributed_executor_backend: str = "auto"  # who starts ranks: mp (processes here), ray (actors, several machines)
    overlap: bool = True  # prepare step n+1 while step n runs
    max_send_delay_ms: float = 50.0  # what a token may wait for its successors where many streams are sent to; 0: off
    keepalive_ms: float = 0.0  # a stream silent for longer gets an empty delta, which notices HTTP disconnects; 0: off

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> ServingConfig:
        """Parses the strings of config.pbtxt's `parameters` (or of `--set key=value`).

        Raises:
            ConfigError: an unknown key (names the nearest and all known ones), or a value out of its limits (names
                key, value and limit), or values that contradict each other.
        """
        values: dict[str, Any] = {}
        for key, text in parameters.items():
            if key in TRITON_PARAMETERS:
                continue
            if key not in _PARSERS:
                raise ConfigError(unknown_key("parameters", key, _PARSERS))
            try:
                values[key] = _PARSERS[key](text.strip())
            except ValueError as error:
                raise ConfigError(f"parameters.{key}: got {text!r}; {error}") from None
        config = cls(**values)
        config._check_together()
        return config

    def _check_together(self) -> None:
        if self.kv_cache_bytes and self.kv_cache_fraction:
            raise ConfigError(
                f"parameters: kv_cache_bytes ({self.kv_cache_bytes}) and kv_cache_fraction ({self.kv_cache_fraction}) "
                "are both set; keep one"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"parameters.max_num_batched_tokens: got {self.max_num_batched_tokens}; must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running sequence gets its token"
            )
        if self.max_timeout_ms and self.default_timeout_ms > self.max_timeout_ms:
            raise ConfigError(
                f"parameters.default_timeout_ms: got {self.default_timeout_ms:g}; must be at most max_timeout_ms "
                f"({self.max_timeout_ms:g})"
            )


def unknown_key(where: str, key: str, allowed: Mapping[str, object]) -> str:
    """The text for an unknown key: the nearest known one if there is one, then the allowed set."""
    near = difflib.get_close_matches(key, allowed, n=1)
    suggestion = f"did you mean {near[0]}? " if near else ""
    return f"{where}: unknown key {key!r}; {suggestion}allowed: {', '.join(sorted(allowed))}"


def _choice(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return parse


def _integer(low: int, high: int = _INT_MAX) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", text) or not low <= int(text) <= high:
            raise ValueError(f"must be an integer from {low} to {high}")
        return int(text)

    return parse


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:  # false for NaN as well
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return value

    return parse


def _size(text: str) -> int:
    """Bytes, with an optional binary suffix: "2GiB", "512M"."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("must be a size in bytes, such as 1073741824, 1GiB or 512MiB")
    suffix = (match.group(2) or "").upper().rstrip("B").rstrip("I")
    return int(match.group(1)) * _SIZE_FACTORS[suffix]


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError("must be true or false")
    return text.lower() in ("true", "1")


_DAY_MS = 86_400_000.0

_PARSERS: dict[str, Callable[[str], object]] = {
    "executor": _choice(EXECUTORS),
    "precision": _choice(PRECISIONS),
    "compute_precision": _choice(COMPUTE_PRECISIONS),
    "kv_cache_precision": _choice(KV_CACHE_PRECISIONS),
    "kv_cache_bytes": _size,
    "kv_cache_fraction": _number(0.0, 0.98),
    "swap_space_bytes": _size,
    "max_num_seqs": _integer(1, 4096),
    "max_num_batched_tokens": _integer(1, 1 << 20),
    "max_context_len": _integer(0),
    "max_queue_size": _integer(1),
    "default_timeout_ms": _number(0.0, _DAY_MS),
    "max_timeout_ms": _number(0.0, _DAY_MS),
    "priority_levels": _integer(0, 1024),
    "default_max_tokens": _integer(0),
    "enable_prefix_caching": _boolean,
    "num_threads": _integer(0, 1024),
    "attention": _choice(ATTENTION_OPERATORS),
    "watchdog_ms": _number(0.0, _DAY_MS),
    "recorder_steps": _integer(1, 1 << 20),
    "verify_checksums": _boolean,
    "build_missing_engines": _boolean,
    "tensor_parallel_size": _integer(0, 1024),
    "pipeline_parallel_size": _integer(0, 1024),
    "distributed_executor_backend": _choice(RANK_STARTERS),
    "overlap": _boolean,
    "max_send_delay_ms": _number(0.0, 1000.0),
    "keepalive_ms": _number(0.0, _DAY_MS),
}
assert set(_PARSERS) == {field.name for field in dataclasses.fields(ServingConfig)}, "a field has no parser"
