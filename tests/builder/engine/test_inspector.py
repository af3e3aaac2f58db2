"""The engine inspector's JSON, of TensorRT 10 and 11, in the same schema as the builder's log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trtbuild.engine.inspector import kernels_from_inspector
from trtbuild.engine.layer_report import Kernel, KernelTensor
from trtdecode.errors import BuildError


def layer(**changes: Any) -> dict[str, Any]:
    """A layer in the form of TensorRT 11."""
    tensor = {"Dimensions": [-1, 64], "Strides": [64, 1], "Format": "Row major linear FP16 format (kLINEAR)"}
    return {
        "Name": "__myl_FcAdd_myl1_2",
        "LayerType": "runtime_fusion",
        "Inputs": [{"Name": "x [profile 1]", "Datatype": "Half", **tensor}],
        "Constants": [{"Name": "w", "Datatype": "Int8", **tensor}],
        "Outputs": [{"Name": "y [profile 1]", "Datatype": "Half", **tensor}],
        "TacticName": "t",
        "StreamId": 0,
        "Metadata": "[ONNX Layer: up]\x1f[ONNX Layer: bias]",
        **changes,
    }


def read(*layers: Any) -> tuple[Kernel, ...]:
    return kernels_from_inspector(json.dumps({"Layers": layers, "I/O Tensors": []}))


def test_tensorrt_11() -> None:
    assert read(layer()) == (
        Kernel(
            name="__myl_FcAdd",
            kind="runtime_fusion",
            profile=1,
            inputs=(KernelTensor("x", "Half", (-1, 64)),),
            constants=(KernelTensor("w", "Int8", (-1, 64)),),
            outputs=(KernelTensor("y", "Half", (-1, 64)),),
            onnx_nodes=("up", "bias"),
            tactic="t",
        ),
    )


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("Half", "Half"),
        ("Row major linear FP16 format", "Half"),
        ("Row major linear FP32", "Float"),
        ("Thirty-two wide channel vectorized row major Int8 format", "Int8"),
        ("Row major linear BF16 format", "BFloat16"),
    ],
)
def test_tensorrt_10_has_type_and_layout_in_one_field(text: str, dtype: str) -> None:
    tensor = {"Name": "x", "Dimensions": [1], "Format/Datatype": text}
    (kernel,) = read(layer(Inputs=[tensor], Constants=[], Outputs=[]))
    assert kernel.inputs == (KernelTensor("x", dtype, (1,)),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a layer list"),
        ('{"layers": []}', "not a layer list"),
        ('{"Layers": []}', "lists no layers"),
        ('{"Layers": ["conv1"]}', "names only"),
        ('{"Layers": [{"Name": "x"}]}', "lacks 'LayerType'"),
    ],
)
def test_what_is_not_understood_raises(text: str, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        kernels_from_inspector(text)


def test_an_unknown_type_raises() -> None:
    with pytest.raises(BuildError, match="names type 'Posit' for tensor 'x'"):
        read(layer(Inputs=[{"Name": "x", "Dimensions": [1], "Datatype": "Posit"}]))
