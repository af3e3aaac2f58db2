"""Which reader a config's `quantization_config` calls for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trtbuild.checkpoint.awq_checkpoint import AwqScheme
from trtbuild.checkpoint.bitsandbytes_checkpoint import BitsandbytesScheme
from trtbuild.checkpoint.compressed_tensors import CompressedTensorsScheme
from trtbuild.checkpoint.gptq_checkpoint import GptqScheme
from trtbuild.checkpoint.quantized import RawTensors, Scheme, unsupported

SCHEMES: dict[str, Callable[[RawTensors, Mapping[str, Any], Path], Scheme]] = {
    "gptq": GptqScheme,
    "awq": AwqScheme,
    "compressed-tensors": CompressedTensorsScheme,
    "bitsandbytes": BitsandbytesScheme,
}


def scheme_of(config: Mapping[str, Any], tensors: RawTensors, source: Path) -> Scheme | None:
    """The scheme of a quantised checkpoint; None for a plain one. Raises CheckpointError for one that is not known."""
    settings = config.get("quantization_config")
    if not settings:
        return None
    method = settings.get("quant_method")
    if method is None and (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        method = "bitsandbytes"
    if method not in SCHEMES:
        raise unsupported(source, f"quantization_config with quant_method {method!r}", ", ".join(sorted(SCHEMES)))
    return SCHEMES[method](tensors, settings, source)
