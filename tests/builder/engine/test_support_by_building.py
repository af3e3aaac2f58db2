"""The support table against the builder itself, and which fusions hold on which SM: small MLPs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from builder.engine.compiled import PROFILE
from builder.engine.graphs import WIDTH, gated_mlp, gpt_mlp
from trtbuild.engine.engine_from_onnx import EngineRequest, build_engine
from trtbuild.engine.expectations import check_patterns
from trtbuild.engine.flavour import load_tensorrt
from trtbuild.engine.prepare import PreparedGraph, prepare_graph
from trtbuild.engine.profiles import shape_ranges
from trtbuild.quantize.calibrate_onnx import calibrate_onnx
from trtbuild.quantize.recipe import Recipe
from trtdecode import support
from trtdecode.errors import BuildError

SAMPLES = [{"x": np.random.default_rng(0).standard_normal((16, WIDTH)).astype(np.float32)}]
MODELS = {"gpt": gpt_mlp, "llama": gated_mlp}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[PreparedGraph, ir.Graph]]:
    """Both MLPs in every precision, ready for the builder."""
    folder = tmp_path_factory.mktemp("prepared")
    graphs = {}
    for name, make in MODELS.items():
        for precision in support.ENGINE_PRECISIONS:
            model = make()
            statistics = calibrate_onnx(model, SAMPLES)
            graph = prepare_graph(model, f"{name}-{precision}", Recipe(precision), statistics, folder)
            graphs[name, precision] = (graph, model.graph)
    return graphs


def fusions(prepared: tuple[PreparedGraph, ir.Graph], sm: int) -> dict[str, bool]:
    """Builds for an SM; for each named pattern whether it holds."""
    graph, typed = prepared
    request = EngineRequest(graph.onnx_path, sm, [shape_ranges(typed, PROFILE)])
    built = build_engine(load_tensorrt("tensorrt-rtx"), request)
    checks = check_patterns("mlp", graph.patterns, built.kernels, graph.operators)
    return {check.pattern: check.holds for check in checks}


@pytest.mark.parametrize("sm", support.FLAVOUR_SMS[support.TENSORRT_RTX])
def test_the_table_is_what_the_builder_can_do(
    prepared: dict[tuple[str, str], tuple[PreparedGraph, ir.Graph]], sm: int
) -> None:
    able = support.supported_precisions(sm, support.TENSORRT_RTX)
    for precision in support.ENGINE_PRECISIONS:
        if precision in able:
            assert fusions(prepared["gpt", precision], sm)[f"{_scheme(precision)}_matmul"]
        else:
            with pytest.raises(BuildError, match="HW-specific datatypes"):
                fusions(prepared["gpt", precision], sm)


def _scheme(precision: str) -> str:
    return "float" if precision in ("fp16", "bf16") else precision


@pytest.mark.parametrize("sm", [75, 89, 120])
def test_fusions_hold_on_every_generation(
    prepared: dict[tuple[str, str], tuple[PreparedGraph, ir.Graph]], sm: int
) -> None:
    assert fusions(prepared["gpt", "fp16"], sm) == {"float_matmul": True, "matmul_bias_gelu": True}
    assert fusions(prepared["gpt", "int8"], sm) == {
        "int8_matmul": True,
        "norm_quantize": True,
        "matmul_bias_gelu": False,  # the scales come first: GELU is in the kernel behind, with the next quantisation
    }
    assert fusions(prepared["llama", "fp16"], sm) == {
        "float_matmul": True,
        "residual_norm": True,
        "gate_up_silu": True,
        "gate_up_silu_in_matmul": False,
    }
    assert fusions(prepared["llama", "int8_weight"], sm) == {
        "int8_weight_matmul": True,
        "residual_norm": True,
        "gate_up_silu": True,
        "gate_up_silu_in_matmul": False,
    }
