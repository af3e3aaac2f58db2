"""What a rank is told when it starts, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtdecode.config import ServingConfig
from trtdecode.executor.device_step import StepLimits
from trtdecode.manifest import RankLayout

if TYPE_CHECKING:
    from trtdecode.executor.gpu_factory import GpuOptions


@dataclass(frozen=True, slots=True)
class EngineTask:
    """What a rank needs to know to run its TensorRT engines."""

    flavour: str
    config: ServingConfig
    options: GpuOptions


@dataclass(frozen=True, slots=True)
class RankTask:
    """One rank's part of the work. Crosses process borders, so plain values only."""

    rank: int
    layout: RankLayout
    graph_path: Path  # on a file system that the rank's machine sees too
    hidden_size: int
    device: str  # "cpu" or "cuda:N"
    dtype: str  # of weights and computation
    kv_dtype: str  # "": dtype
    kv_cache_bytes: int  # of this rank's pool; 0 on a GPU: kv_cache_fraction of what is free
    kv_cache_fraction: float
    num_threads: int  # on a CPU
    limits: StepLimits
    graphs: bool = True  # CUDA graphs
    graph_batch_sizes: tuple[int, ...] = ()
    busy_wait: bool = False
    engines: EngineTask | None = None  # TensorRT engines in the graph's folder instead of the graph

    @property
    def answers(self) -> bool:
        """Whether this rank's result is the step's: the first of the last stage."""
        return self.rank == self.layout.rank_of(self.layout.pipeline_parallel_size - 1, 0)


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What a rank has once it is loaded."""

    block_size: int
    num_blocks: int
    chooses_tokens: bool
    description: dict[str, str]
