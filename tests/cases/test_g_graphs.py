"""CASES group G: what is not said by the builder's own tests (docs/cases.md lists those)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from builder.family_configs import CONFIGS
from builder.tiny_models import model_logits, random_prompt, save_model
from conformance.driver import Driver
from onnx import TensorProto, helper
from trtbuild.checkpoint import open_checkpoint
from trtbuild.graph.author import author_graph
from trtdecode.executor.openvino_executor import OpenVinoExecutor
from trtdecode.executor.torch_executor import TorchExecutor
from trtdecode.executor.torch_operators import OPERATORS

# C48 ---------------------------------------------------------------------------------------------------------------


def dequantize(codes: Any, scales: Any, zeros: Any, **attributes: Any) -> list[list[float]]:
    tensors = [torch.tensor(codes, dtype=torch.int8), torch.tensor(scales), torch.tensor(zeros, dtype=torch.int8)]
    return OPERATORS["DequantizeLinear"](attributes, *tensors).tolist()


def onnxruntime_dequantize(codes: Any, scales: Any, zeros: Any, axis: int) -> list[list[float]]:
    import onnxruntime

    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=axis)
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in _KINDS]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, [output]), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": np.array(codes, np.int8), "s": np.array(scales, np.float32), "z": np.array(zeros, np.int8)}
    return session.run(None, feeds)[0].tolist()


_KINDS = (("x", TensorProto.INT8), ("s", TensorProto.FLOAT), ("z", TensorProto.INT8))


@pytest.mark.parametrize(
    ("codes", "scales", "zeros", "axis", "values"),
    [
        ([[2, 4], [6, 8], [10, 12]], [0.5, 1.0, 2.0], [0, 2, -4], 0, [[1, 2], [4, 6], [28, 32]]),
        ([[2, 4], [6, 8], [10, 12]], [0.5, 10.0], [0, 4], 1, [[1, 0], [3, 40], [5, 80]]),
        ([[1] * 4] * 4, [1.0, 10.0, 100.0, 1000.0], [0] * 4, 0, [[1] * 4, [10] * 4, [100] * 4, [1000] * 4]),
        ([[1] * 4] * 4, [1.0, 10.0, 100.0, 1000.0], [0] * 4, 1, [[1, 10, 100, 1000]] * 4),
        ([[1, 2]], [3.0, 5.0], [0, 0], -1, [[3, 10]]),
    ],
)
def test_c48_each_channel_has_its_own_scale(codes: Any, scales: Any, zeros: Any, axis: int, values: Any) -> None:
    assert dequantize(codes, scales, zeros, axis=axis) == values
    assert onnxruntime_dequantize(codes, scales, zeros, axis) == values


# C50 ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def authored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    config = CONFIGS[request.param]()
    model = save_model(config, folder / "checkpoint")
    author_graph(open_checkpoint(folder / "checkpoint"), folder / "decoder.onnx", "f32")
    return model, folder / "decoder.onnx"


@pytest.mark.parametrize("lengths", [(5, 9), (9, 5, 1), (7,), (64, 1), (1, 7, 64)], ids=str)
@pytest.mark.parametrize("executor", [TorchExecutor, OpenVinoExecutor])
def test_c50_rows_of_unequal_length_keep_their_positions(
    authored: tuple[Any, Path], executor: Any, lengths: tuple[int, ...]
) -> None:
    """Policy: there is no padding. A batch is a ragged list of tokens, each with its own position, so a row continues
    at its own length. Prefill and three decode steps give each row what it gets alone."""
    model, graph = authored
    vocab_size = model.config.vocab_size
    made = executor(graph, kv_cache_bytes=1 << 22)
    driver = Driver(made)
    sequences = [driver.sequence(random_prompt(length, vocab_size), room=3) for length in lengths]
    for _ in range(4):
        rows = driver.step(*((seq, len(seq.tokens) - seq.num_computed) for seq in sequences))
        for sequence, row in zip(sequences, rows, strict=True):
            np.testing.assert_allclose(row, model_logits(model, sequence.tokens)[-1], atol=1e-3)
            sequence.tokens.append(int(row.argmax()))
    assert [seq.num_computed for seq in sequences] == [length + 3 for length in lengths]
    made.close()


def test_c50_positions_are_an_input_and_no_size_is_traced(authored: tuple[Any, Path]) -> None:
    graph = onnx.load(authored[1], load_external_data=False).graph
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert "positions" in shapes and "attention_mask" not in shapes
    for name in ("input_ids", "positions", "past_lens", "query_begins", "block_indices", "logit_indices", "logits"):
        assert isinstance(shapes[name][0], str), f"{name} has a fixed size"
