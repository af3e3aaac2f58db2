"""Reads the engine inspector's JSON into the same schema as the builder's log (flavour "tensorrt", which has a GPU).

TensorRT 10 names a tensor's type and layout in one field, "Format/Datatype"; TensorRT 11 has "Datatype" and "Format".
"""

from __future__ import annotations

import json
import re
from typing import Any

from trtdecode.errors import BuildError

from trtbuild.engine.layer_report import (
    DTYPE_BYTES,
    Kernel,
    KernelTensor,
    onnx_nodes_of,
    split_profile,
    with_profiles,
)

#: What older versions write inside a sentence ("Row major linear FP16 format").
_OLD_NAMES = {"FP32": "Float", "FP16": "Half", "BF16": "BFloat16", "INT8": "Int8", "INT32": "Int32", "BOOL": "Bool"}


def kernels_from_inspector(text: str) -> tuple[Kernel, ...]:
    """Every compiled kernel of `EngineInspector.get_engine_information(LayerInformationFormat.JSON)`.

    Raises:
        BuildError: not JSON, no layers, layers without detail, or a tensor without a known type.
    """
    try:
        layers = json.loads(text)["Layers"]
    except (ValueError, KeyError, TypeError) as error:
        raise BuildError(f"the engine inspector's answer is not a layer list ({error}); report it") from error
    if not layers:
        raise BuildError("the engine inspector lists no layers; report it with the ONNX file that was built")
    if isinstance(layers[0], str):
        raise BuildError("the engine inspector lists names only; build with ProfilingVerbosity.DETAILED")
    return with_profiles(_kernel_of(layer) for layer in layers)


def _kernel_of(layer: dict[str, Any]) -> Kernel:
    try:
        tensors = (*layer.get("Inputs", ()), *layer.get("Outputs", ()))
        return Kernel(
            name=split_profile(layer["Name"])[0],
            kind=layer["LayerType"],
            profile=max(split_profile(part["Name"])[1] for part in (layer, *tensors)),
            inputs=_tensors_of(layer, "Inputs"),
            constants=_tensors_of(layer, "Constants"),
            outputs=_tensors_of(layer, "Outputs"),
            onnx_nodes=onnx_nodes_of(layer.get("Metadata", "")),
            tactic=str(layer.get("TacticName", "")),
            stream=int(layer.get("StreamId", 0)),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise BuildError(f"the engine inspector's layer {layer!r:.200} lacks {error}; extend inspector.py") from error


def _tensors_of(layer: dict[str, Any], field: str) -> tuple[KernelTensor, ...]:
    return tuple(
        KernelTensor(split_profile(tensor["Name"])[0], _dtype_of(tensor), tuple(tensor["Dimensions"]))
        for tensor in layer.get(field, ())
    )


def _dtype_of(tensor: dict[str, Any]) -> str:
    text = str(tensor["Datatype"] if "Datatype" in tensor else tensor["Format/Datatype"])
    if text in DTYPE_BYTES:
        return text
    for match in re.finditer(r"\w+", text):
        word = match[0]
        if word in DTYPE_BYTES:
            return word
        if word.upper() in _OLD_NAMES:
            return _OLD_NAMES[word.upper()]
    raise BuildError(f"the engine inspector names type {text!r} for tensor {tensor['Name']!r}; extend inspector.py")
