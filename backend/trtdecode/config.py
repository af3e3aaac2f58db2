"""What config.pbtxt asks for, as one frozen object.

`ServingConfig` holds our `parameters`; its field names *are* the parameter names, and its defaults are the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """One replica's configuration. Sizes in bytes, times in milliseconds."""

    executor: str = "auto"  # auto, openvino, tensorrt, torch
    precision: str = "auto"  # weights: auto takes the best the executor and the version have
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
    watchdog_ms: float = 30_000.0  # a longer step dumps the flight recorder; 0: off
    recorder_steps: int = 256
    verify_checksums: bool = True
    build_missing_engines: bool = False
    overlap: bool = True  # prepare step n+1 while step n runs
