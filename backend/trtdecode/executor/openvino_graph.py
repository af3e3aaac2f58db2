"""Reading a decoder graph into OpenVINO with our operators converted, and the caches of what was compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdecode.errors import LoadError, ManifestError
from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.base import OPERATOR_DOMAIN

if TYPE_CHECKING:
    import openvino as ov

#: What makes OpenVINO's operators of an ONNX node; see openvino.frontend.onnx.ConversionExtension.
Convert = Callable[[Any], list[Any]]


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """A layer's key or value cache, or both in one, as the plugin compiled it."""

    name: str  # the graph's input
    element_type: Any  # openvino.Type
    block_shape: tuple[int, ...]  # without the leading number of blocks

    @property
    def block_bytes(self) -> int:
        return int(np.prod(self.block_shape)) * int(self.element_type.size)


def read_graph(core: ov.Core, graph_path: Path, attention: Convert, standard: dict[str, Convert]) -> ov.Model:
    """Reads a graph.

    Args:
        core: gets the conversions, for good.
        graph_path: an ONNX file.
        attention: converts `trtdecode::PagedAttention`.
        standard: converts operators of ONNX itself, by their names.

    Raises:
        ManifestError: the file cannot be read.
        LoadError: what a conversion raised.
    """
    from openvino.frontend.onnx import ConversionExtension

    errors: list[LoadError] = []

    def keeping_errors(convert: Convert) -> Convert:
        """OpenVINO would bury a readable error in its own."""

        def wrapped(node: Any) -> list[Any]:
            try:
                return convert(node)
            except LoadError as error:
                errors.append(error)
                raise

        return wrapped

    core.add_extension(ConversionExtension("PagedAttention", OPERATOR_DOMAIN, keeping_errors(attention)))
    for name, convert in standard.items():
        core.add_extension(ConversionExtension(name, keeping_errors(convert)))
    try:
        return core.read_model(graph_path)
    except RuntimeError as error:
        if errors:
            raise errors[0] from None
        raise ManifestError(
            f"{graph_path}: OpenVINO cannot read it ({_last_line(error)}); import the model again"
        ) from error


def cache_layouts(compiled: ov.CompiledModel) -> tuple[CacheLayout, ...]:
    """The caches of a compiled decoder, in the order of its inputs."""
    layouts = []
    for port in compiled.inputs:
        if "_cache." in port.any_name:
            block_shape = tuple(int(size.get_length()) for size in list(port.partial_shape)[1:])
            layouts.append(CacheLayout(port.any_name, port.element_type, block_shape))
    return tuple(layouts)


def block_size_of(layouts: tuple[CacheLayout, ...]) -> int:
    """KV slots a block: the axis after the heads, but where OpenVINO's own u8 key cache keeps scales there as well."""
    return next(layout.block_shape[1] for layout in layouts if not layout.name.startswith("key_cache."))


def spec_of(node: Any) -> AttentionSpec:
    """The node's attributes; OpenVINO's node view cannot list them, so each is asked for by name."""
    names = [name for name in AttentionSpec.__dataclass_fields__ if node.has_attribute(name)]
    return AttentionSpec.from_attributes({name: node.get_attribute(name) for name in names}, "PagedAttention")


def constant(value: Any, dtype: Any) -> Any:
    from openvino import opset13

    return opset13.constant(np.array(value, dtype)).output(0)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
