"""Which attention operator an OpenVINO decoder runs: our own, which is faster, or OpenVINO's."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from trtdecode.config import ATTENTION_OPERATORS
from trtdecode.errors import ConfigError
from trtdecode.executor import openvino_native_attention, openvino_paged_attention

if TYPE_CHECKING:
    import openvino as ov

logger = logging.getLogger(__name__)


def read_decoder(core: ov.Core, graph_path: Path, *, attention: str, kv_cache_precision: str) -> tuple[ov.Model, str]:
    """Reads a decoder graph.

    Args:
        core: gets the extensions that the graph needs, for good.
        graph_path: an ONNX file.
        attention: one of ATTENTION_OPERATORS; "auto" takes our own where it is built and fits.
        kv_cache_precision: "f32" or "u8".

    Returns:
        the model, and which operator it runs: "openvino", or "native" and the kernels' instruction set.

    Raises:
        ConfigError: "native" where it is not built or does not fit; no such operator.
        ManifestError: the file cannot be read.
        UnsupportedError: a node asks for something that the operator lacks.
    """
    if attention not in ATTENTION_OPERATORS:
        known = ", ".join(ATTENTION_OPERATORS)
        raise ConfigError(f"attention: the openvino executor has no {attention!r}; use one of {known}")
    reason = "openvino was asked for" if attention == "openvino" else openvino_native_attention.why_unavailable()
    if not reason:
        model = openvino_native_attention.read_decoder(core, graph_path, kv_cache_precision)
        if model is not None:
            return model, f"native {openvino_native_attention.kernels_in_use()}"
        reason = "the graph rotates more than the queries and keys of attention"
    if attention == "native":
        raise ConfigError(f"attention: native is not possible: {reason}; use auto")
    logger.debug("attention by OpenVINO's operator: %s", reason)
    import openvino as ov

    # Not `core`: our conversion of rotations may be in it.
    return openvino_paged_attention.read_decoder(ov.Core(), graph_path), "openvino"
