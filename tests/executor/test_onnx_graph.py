"""Reading graphs: external data mapped, 4-bit weights unpacked, attributes checked, damage named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from conformance.tiny_graph import TinySpec, TinyWeights
from onnx import TensorProto, helper, numpy_helper
from trtdecode.errors import ManifestError, UnsupportedError
from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.onnx_graph import attention_specs, read_graph

ATTRIBUTES = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "scale": 0.5}


def test_a_decoder_reads_back(tmp_path: Path) -> None:
    spec = TinySpec(sliding_window=4)
    graph = read_graph(spec.write(tmp_path))
    for name, array in TinyWeights(spec).by_name.items():
        np.testing.assert_array_equal(graph.weights[name], array)
    assert graph.inputs[:3] == ("input_ids", "positions", "past_lens")
    assert graph.inputs[-1] == "value_cache.1"
    assert graph.outputs == ("logits",)
    assert attention_specs(graph) == {
        f"node:attended.{layer}": AttentionSpec(
            num_heads=6, num_kv_heads=2, head_dim=32, scale=np.float32(32**-0.5).item(), sliding_window=4
        )
        for layer in (0, 1)
    }


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize(
    ("kind", "dtype", "values"),
    [
        (TensorProto.INT4, ml_dtypes.int4, [[-8, 7, -1], [0, 1, 3]]),
        (TensorProto.UINT4, ml_dtypes.uint4, [[0, 15, 8], [1, 2, 3]]),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16, [[1.0, -2.5, 0.125], [3.0, 4.0, 5.0]]),
        (TensorProto.INT8, np.int8, [[-128, 127, 0], [1, 2, 3]]),
    ],
)
def test_every_storage_type_reads_back(
    tmp_path: Path, kind: int, dtype: Any, values: list[list[float]], external: bool
) -> None:
    weight = numpy_helper.from_array(np.array(values, dtype), "w")
    assert weight.data_type == kind
    node = helper.make_node("Identity", ["w"], ["y"])
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", kind, (2, 3))], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    path = tmp_path / "graph.onnx"
    onnx.save_model(model, str(path), save_as_external_data=external, location="graph.onnx.data", size_threshold=0)
    array = read_graph(path).weights["w"]
    assert array.astype(np.float32).tolist() == values
    assert array.flags.writeable  # torch refuses to share read-only memory without a warning


def test_truncated_weights_name_file_and_tensor(tmp_path: Path) -> None:
    path = TinySpec().write(tmp_path)
    data = tmp_path / "decoder.onnx.data"
    data.write_bytes(data.read_bytes()[:-1000])
    with pytest.raises(ManifestError, match=r"decoder\.onnx\.data: weight '\w+' is not readable .*; import the model"):
        read_graph(path)


def test_missing_and_damaged_files_are_manifest_errors(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"decoder\.onnx: not found; import the model again"):
        read_graph(tmp_path / "decoder.onnx")
    (tmp_path / "decoder.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(ManifestError, match=r"decoder\.onnx: not an ONNX file"):
        read_graph(tmp_path / "decoder.onnx")


def test_an_unknown_attribute_is_not_dropped_silently() -> None:
    with pytest.raises(UnsupportedError, match="PagedAttention 'n': unknown attribute sinks"):
        AttentionSpec.from_attributes({**ATTRIBUTES, "sinks": 1}, "n")


def test_a_missing_attribute_is_named() -> None:
    with pytest.raises(ManifestError, match="PagedAttention 'n': attribute scale is missing"):
        AttentionSpec.from_attributes({k: v for k, v in ATTRIBUTES.items() if k != "scale"}, "n")


def test_heads_must_divide() -> None:
    with pytest.raises(ManifestError, match="num_heads 6 is not a multiple of num_kv_heads 4"):
        AttentionSpec.from_attributes({**ATTRIBUTES, "num_kv_heads": 4}, "n")
