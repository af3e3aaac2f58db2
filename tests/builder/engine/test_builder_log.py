"""The builder's layer list: one kernel a line, and nothing that is not understood passes."""

from __future__ import annotations

import pytest
from trtbuild.engine.builder_log import kernels_from_log
from trtbuild.engine.layer_report import Kernel, KernelTensor
from trtdecode.errors import BuildError

HALF = "Strides: [768,1], StrideOrder: [1,0], Datatype: Half, Format: (Linear) Row major linear format }"
NORM = (
    "Name: __myl_CastMeanSubMulCast_myl0_1, LayerType: kgen, Inputs: [ { Name: x, Dimensions: [-1,768], "
    f"{HALF}], Constants: [ {{ Name: g, Dimensions: [1,768], {HALF}, {{ Name: eps, Dimensions: [], Strides: [], "
    "StrideOrder: [], Datatype: Float, Format: (Linear) Row major linear format }], Outputs: [ { Name: y, "
    "Dimensions: [-1,768], Strides: [768,1], StrideOrder: [1,0], Datatype: FP8, Format: (Linear) Row major linear "
    "format }], TacticName: __myl_x_0x41, StreamId: 0, Metadata: [ONNX Layer: layers.0/norm][ONNX Layer: q]"
)
WAIT = (
    "Name: __mye8161_myl0_3, LayerType: wait, Inputs: [], Constants: [], Outputs: [], TacticName: , StreamId: 1, "
    "EventId: 4, Metadata: "
)
GEMM_PROFILE_1 = (
    "Name: up [profile 1]_myl1_2, LayerType: gemm, Inputs: [ { Name: y [profile 1], Dimensions: [-1,768], Strides: "
    "[768,1], StrideOrder: [1,0], Datatype: FP8, Format: (Linear) Row major linear format }], Constants: [], "
    "Outputs: [], TacticName: __myelin_CASK_STUB, StreamId: 0, Metadata: [ONNX Layer: up]"
)
SHAPE_PROFILE_1 = (
    "Name: __mye462_0_myl1_0, LayerType: shape_call, Inputs: [], Constants: [], Outputs: [], TacticName: , "
    "StreamId: 0, Metadata: "
)
TAIL = "\n\nI/O Tensors:\n Name: x, IOMode: Input, DataType: Half\n\nEngine Metadata:\n Multi-Device: Disabled"


def read(*lines: str) -> tuple[Kernel, ...]:
    return kernels_from_log(["Something else:", "Layers:\n" + "\n".join(lines) + TAIL])


def test_one_line_is_one_kernel() -> None:
    (kernel,) = read(NORM)
    assert kernel == Kernel(
        name="__myl_CastMeanSubMulCast",
        kind="kgen",
        profile=0,
        inputs=(KernelTensor("x", "Half", (-1, 768)),),
        constants=(KernelTensor("g", "Half", (1, 768)), KernelTensor("eps", "Float", ())),
        outputs=(KernelTensor("y", "FP8", (-1, 768)),),
        onnx_nodes=("layers.0/norm", "q"),
        tactic="__myl_x_0x41",
        stream=0,
    )
    assert kernel.operations == ("Cast", "Mean", "Sub", "Mul", "Cast")
    assert kernel.dtypes == ("Half", "Float")
    assert kernel.launches
    assert not kernel.is_matmul


def test_profile_is_taken_from_names_and_given_to_the_graph_neighbours() -> None:
    kernels = read(NORM, WAIT, SHAPE_PROFILE_1, GEMM_PROFILE_1)
    assert [(kernel.name, kernel.profile) for kernel in kernels] == [
        ("__myl_CastMeanSubMulCast", 0),
        ("__mye8161", 0),
        ("__mye462_0", 1),
        ("up", 1),
    ]
    assert kernels[3].inputs[0].name == "y"
    assert kernels[3].is_matmul
    assert not kernels[1].launches


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ((NORM, "Name: odd, Kind: kgen"), "line of unknown form: 'Name: odd, Kind: kgen'"),
        ((NORM + ", Extra: 1\nnot a layer",), "line of unknown form: 'not a layer'"),
        ((NORM.replace("Datatype: FP8", "Type: FP8"),), "tensor of unknown form"),
        ((), "layer list is empty"),
    ],
)
def test_what_is_not_understood_raises(lines: tuple[str, ...], text: str) -> None:
    with pytest.raises(BuildError, match=text):
        read(*lines)


def test_no_list_at_all_raises() -> None:
    with pytest.raises(BuildError, match="logged no layer list"):
        kernels_from_log(["Adding 1 engine(s) to plan file."])
