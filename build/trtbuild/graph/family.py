"""What one file per model family provides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir
from trtdecode.executor.base import GRAPH_OUTPUT
from trtdecode.executor.encoder_base import EMBEDDING_OUTPUT, SCORES_OUTPUT

from trtbuild.graph.builder import GraphBuilder
from trtbuild.graph.config import DecoderConfig, RawConfig
from trtbuild.graph.encoder_config import EncoderConfig
from trtbuild.graph.encoder_step import EncoderStep, declare_encoder_step
from trtbuild.graph.step import Step, declare_step

ModelConfig = DecoderConfig | EncoderConfig


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

    def write(self, g: GraphBuilder, config: DecoderConfig) -> None:
        """Declares the inputs, builds, declares the output."""
        logits = self.build(g, declare_step(g, config), config)
        g.output(GRAPH_OUTPUT, logits, ir.DataType.FLOAT, ["S", config.vocab_size])


@dataclass(frozen=True)
class EncoderFamily:
    """An encoder family: attributes as above, but `build` returns the embedding f32[B, hidden] or the scores."""

    name: str
    architectures: tuple[str, ...]
    read_config: Callable[[str, RawConfig], EncoderConfig]
    build: Callable[[GraphBuilder, EncoderStep, EncoderConfig], ir.Value]

    def write(self, g: GraphBuilder, config: EncoderConfig) -> None:
        """Declares the inputs, builds, declares the output."""
        result = self.build(g, declare_encoder_step(g), config)
        if config.num_labels:
            g.output(SCORES_OUTPUT, result, ir.DataType.FLOAT, ["B", config.num_labels])
        else:
            g.output(EMBEDDING_OUTPUT, result, ir.DataType.FLOAT, ["B", config.hidden_size])
