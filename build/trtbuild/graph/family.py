"""What one file per model family provides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig, RawConfig
from trtbuild.graph.step import Step


@dataclass(frozen=True)
class Family:
    """A decoder family.

    Attributes:
        architectures: class names in a config's `architectures` that it serves.
        read_config: (family name, raw config) -> DecoderConfig; raises CheckpointError or UnsupportedError.
        build: writes the graph and returns the logits f32[S, vocab].
    """

    name: str
    architectures: tuple[str, ...]
    read_config: Callable[[str, RawConfig], DecoderConfig]
    build: Callable[[GraphBuilder, Step, DecoderConfig], ir.Value]
