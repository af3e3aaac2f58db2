"""Everything we know about OpenVINO's paged attention operator, which is internal to OpenVINO and may change any day.

The operator `PagedAttentionExtension` takes 28 inputs; our `trtdecode::PagedAttention` supplies ten, the rest are
constants that switch features off. The CPU plugin chooses layout and precision of the caches at compile time, so the
cache parameters stay dynamic until then and the layout is read back from the compiled model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdecode.errors import UnsupportedError
from trtdecode.executor.openvino_graph import constant, read_graph, spec_of

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


def read_decoder(core: ov.Core, graph_path: Path) -> ov.Model:
    """Reads a decoder graph with `trtdecode::PagedAttention` mapped to OpenVINO's operator.

    Raises:
        ManifestError: the file cannot be read.
        UnsupportedError: a node asks for something OpenVINO's operator lacks.
    """
    import openvino as ov

    check_openvino_version(ov.__version__)
    model = read_graph(core, graph_path, _paged_attention, {})
    for parameter in model.get_parameters():
        if "_cache." in parameter.get_friendly_name():
            parameter.set_element_type(ov.Type.dynamic)
    model.validate_nodes_and_infer_types()
    return model


def _paged_attention(node: Any) -> list[Any]:
    from openvino.op import _PagedAttentionExtension

    spec = spec_of(node)
    if spec.softcap:
        raise UnsupportedError(
            f"PagedAttention: softcap {spec.softcap:g} is not in OpenVINO's operator; set parameter attention to auto "
            "or native, or use executor torch for this model"
        )
    inputs = [node.get_input(index) for index in range(node.get_input_size())]
    query, key, value, key_cache, value_cache, past_lens, query_begins, indices, begins, max_context_len = inputs
    operator = _PagedAttentionExtension(
        [
            *(query, key, value, key_cache, value_cache, past_lens, query_begins, indices, begins),
            constant(spec.scale, np.float32),
            constant(spec.sliding_window, np.int32),
            constant(spec.alibi_slopes, np.float32),  # [] or [num_heads]
            max_context_len,
            *_switched_off(),
        ]
    )
    facts = operator.get_rt_info()
    facts["num_k_heads"] = facts["num_v_heads"] = spec.num_kv_heads
    facts["k_head_size"] = facts["v_head_size"] = spec.head_dim
    return [operator.output(0)]


def _switched_off() -> list[Any]:
    """Inputs 13 to 27: features that we do not use, each switched off by an empty tensor or a zero."""
    return [
        constant([], np.int32),  # score_aggregation_window: empty, not a scalar
        constant([], np.int32),  # rotated_block_indices
        constant(np.zeros((0, 0)), np.int32),  # rotation_deltas
        constant(np.zeros((0, 0)), np.float32),  # rotation_trig_lut
        constant([], np.float32),  # xattention_threshold
        constant(0, np.int32),  # xattention_block_size
        constant(0, np.int32),  # xattention_stride
        constant(np.zeros((0, 0, 0, 0)), np.float32),  # sinks
        constant(0, np.int32),  # adaptive_rkv_start_size
        constant([], np.int32),  # adaptive_rkv_evictable_sizes
        constant([], np.int32),  # adaptive_rkv_diversity_block_set_indices
        constant([], np.int32),  # adaptive_rkv_diversity_block_set_indices_begins
        constant([], np.int32),  # token_type_ids
        constant([], np.uint8),  # qq_bias
        constant([], np.int32),  # qq_bias_begins
    ]
