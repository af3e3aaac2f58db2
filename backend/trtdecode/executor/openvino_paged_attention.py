"""Everything we know about OpenVINO's paged attention operator, which is internal to OpenVINO and may change any day.

The operator `PagedAttentionExtension` takes 28 inputs; our `trtdecode::PagedAttention` supplies ten, the rest are
constants that switch features off. The CPU plugin chooses layout and precision of the caches at compile time, so the
cache parameters stay dynamic until then and the layout is read back from the compiled model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdecode.errors import LoadError, ManifestError, UnsupportedError
from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.base import OPERATOR_DOMAIN

if TYPE_CHECKING:
    import openvino as ov

#: The release whose operator this file describes. A newer one needs the conformance kit run before it is listed here.
SUPPORTED_RELEASES = ("2026.4",)


def check_openvino_version(version: str) -> None:
    """Raises UnsupportedError when this OpenVINO's operator has not been checked against this file."""
    if not version.startswith(tuple(f"{release}." for release in SUPPORTED_RELEASES)):
        raise UnsupportedError(
            f"openvino {version}: its internal paged attention operator is known for {', '.join(SUPPORTED_RELEASES)} "
            "only; install openvino==2026.4.1, or run tests/conformance against the new release and list it in "
            "executor/openvino_paged_attention.py"
        )


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """One layer's key or value cache as the plugin compiled it."""

    name: str  # the graph's input
    element_type: Any  # openvino.Type
    block_shape: tuple[int, ...]  # without the leading number of blocks

    @property
    def block_bytes(self) -> int:
        return int(np.prod(self.block_shape)) * int(self.element_type.size)


def read_decoder(core: ov.Core, graph_path: Path) -> ov.Model:
    """Reads a decoder graph with `trtdecode::PagedAttention` mapped to OpenVINO's operator.

    Raises:
        ManifestError: the file cannot be read.
        UnsupportedError: a node asks for something OpenVINO's operator lacks.
    """
    import openvino as ov
    from openvino.frontend.onnx import ConversionExtension

    check_openvino_version(ov.__version__)
    converter = _Converter()
    core.add_extension(ConversionExtension("PagedAttention", OPERATOR_DOMAIN, converter))
    try:
        model = core.read_model(graph_path)
    except RuntimeError as error:
        if converter.error is not None:
            raise converter.error from None
        raise ManifestError(
            f"{graph_path}: OpenVINO cannot read it ({_last_line(error)}); import the model again"
        ) from error
    for parameter in model.get_parameters():
        if "_cache." in parameter.get_friendly_name():
            parameter.set_element_type(ov.Type.dynamic)
    model.validate_nodes_and_infer_types()
    return model


def cache_layouts(compiled: ov.CompiledModel) -> tuple[CacheLayout, ...]:
    """The caches of a compiled decoder, in the order of its inputs."""
    layouts = []
    for port in compiled.inputs:
        if "_cache." in port.any_name:
            block_shape = tuple(int(size.get_length()) for size in list(port.partial_shape)[1:])
            layouts.append(CacheLayout(port.any_name, port.element_type, block_shape))
    return tuple(layouts)


def block_size_of(layouts: tuple[CacheLayout, ...]) -> int:
    """KV slots a block, from a value cache: the axis after the heads (a u8 key cache keeps scales there as well)."""
    return next(layout.block_shape[1] for layout in layouts if layout.name.startswith("value_cache."))


class _Converter:
    """The frontend's conversion function; keeps the readable error that OpenVINO would bury in its own."""

    def __init__(self) -> None:
        self.error: LoadError | None = None

    def __call__(self, node: Any) -> list[Any]:
        try:
            return [_paged_attention(node)]
        except LoadError as error:
            self.error = error
            raise


def _paged_attention(node: Any) -> Any:
    from openvino.op import _PagedAttentionExtension

    spec = _spec_of(node)
    inputs = [node.get_input(index) for index in range(node.get_input_size())]
    query, key, value, key_cache, value_cache, past_lens, query_begins, indices, begins, max_context_len = inputs
    operator = _PagedAttentionExtension(
        [
            *(query, key, value, key_cache, value_cache, past_lens, query_begins, indices, begins),
            _constant(spec.scale, np.float32),
            _constant(spec.sliding_window, np.int32),
            _constant(spec.alibi_slopes, np.float32),  # [] or [num_heads]
            max_context_len,
            *_switched_off(),
        ]
    )
    facts = operator.get_rt_info()
    facts["num_k_heads"] = facts["num_v_heads"] = spec.num_kv_heads
    facts["k_head_size"] = facts["v_head_size"] = spec.head_dim
    return operator.output(0)


def _switched_off() -> list[Any]:
    """Inputs 13 to 27: features that we do not use, each switched off by an empty tensor or a zero."""
    return [
        _constant([], np.int32),  # score_aggregation_window: empty, not a scalar
        _constant([], np.int32),  # rotated_block_indices
        _constant(np.zeros((0, 0)), np.int32),  # rotation_deltas
        _constant(np.zeros((0, 0)), np.float32),  # rotation_trig_lut
        _constant([], np.float32),  # xattention_threshold
        _constant(0, np.int32),  # xattention_block_size
        _constant(0, np.int32),  # xattention_stride
        _constant(np.zeros((0, 0, 0, 0)), np.float32),  # sinks
        _constant(0, np.int32),  # adaptive_rkv_start_size
        _constant([], np.int32),  # adaptive_rkv_evictable_sizes
        _constant([], np.int32),  # adaptive_rkv_diversity_block_set_indices
        _constant([], np.int32),  # adaptive_rkv_diversity_block_set_indices_begins
        _constant([], np.int32),  # token_type_ids
        _constant([], np.uint8),  # qq_bias
        _constant([], np.int32),  # qq_bias_begins
    ]


def _spec_of(node: Any) -> AttentionSpec:
    """The node's attributes; OpenVINO's node view cannot list them, so each is asked for by name."""
    names = [name for name in AttentionSpec.__dataclass_fields__ if node.has_attribute(name)]
    spec = AttentionSpec.from_attributes({name: node.get_attribute(name) for name in names}, "PagedAttention")
    if spec.softcap:
        raise UnsupportedError(
            f"PagedAttention: softcap {spec.softcap:g} is not in OpenVINO's operator; use executor torch for this model"
        )
    return spec


def _constant(value: Any, dtype: Any) -> Any:
    from openvino import opset13

    return opset13.constant(np.array(value, dtype)).output(0)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
