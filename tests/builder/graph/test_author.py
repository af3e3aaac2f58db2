"""The authored graph as a file: inputs, operators, storage, and what the checker refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import transformers
from builder.tiny_models import LLAMA_SIZES, random_prompt, save_model
from conformance.driver import Driver
from trtbuild.checkpoint import Checkpoint, open_checkpoint
from trtbuild.graph.author import author_graph, config_of
from trtbuild.graph.check import GraphCheckError, check_graph
from trtbuild.graph.registry import BY_ARCHITECTURE, family_of
from trtbuild.quantize.int8 import dequantize_rows, quantize_rows
from trtdecode.errors import CheckpointError, UnsupportedError
from trtdecode.executor.base import GRAPH_INPUTS
from trtdecode.executor.torch_executor import TorchExecutor


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("llama")
    save_model(transformers.LlamaConfig(**LLAMA_SIZES, tie_word_embeddings=True), folder)
    return open_checkpoint(folder)


@pytest.fixture(scope="module", params=["f32", "int8"])
def authored(request: pytest.FixtureRequest, checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "decoder.onnx"
    author_graph(checkpoint, path, request.param)
    return path


def read(path: Path) -> onnx.ModelProto:
    return onnx.load(str(path), load_external_data=False)


def test_inputs_and_output_are_the_contract(checkpoint: Checkpoint, authored: Path) -> None:
    check_graph(authored, config_of(checkpoint).spec)
    graph = read(authored).graph
    caches = ["key_cache.0", "value_cache.0", "key_cache.1", "value_cache.1"]
    assert [value.name for value in graph.input] == [*GRAPH_INPUTS, *caches]
    assert [value.name for value in graph.output] == ["logits"]


def test_every_size_that_a_step_sets_is_symbolic(authored: Path) -> None:
    """Case C50: no traced constant for tokens, sequences, rows or blocks."""
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*read(authored).graph.input, *read(authored).graph.output)
    }
    assert shapes["input_ids"] == shapes["positions"] == ["T"]
    assert (shapes["past_lens"], shapes["query_begins"], shapes["block_begins"]) == (["B"], ["B_plus_1"], ["B_plus_1"])
    assert (shapes["logit_indices"], shapes["logits"]) == (["S"], ["S", 131])
    assert shapes["key_cache.1"] == ["num_blocks", 2, "block_size", 16]


def test_projections_are_merged(authored: Path) -> None:
    counts = Counter(node.op_type for node in read(authored).graph.node)
    # Two layers of qkv, output, gate_up and down; and the head.
    assert counts["Gemm"] == 2 * 4 + 1
    assert (counts["PagedAttention"], counts["RotaryEmbedding"], counts["RMSNormalization"]) == (2, 4, 5)


def test_nodes_are_named_after_the_models_parts(authored: Path) -> None:
    names = [node.name for node in read(authored).graph.node]
    assert len(set(names)) == len(names)
    assert "layers.1/attention/PagedAttention" in names
    assert {name.split("/")[0] for name in names} == {"embed", "rotary", "layers.0", "layers.1", "head"}


def test_tied_embedding_is_stored_once(authored: Path) -> None:
    sizes = [init.name for init in read(authored).graph.initializer if list(init.dims)[:1] == [131]]
    assert [name for name in sizes if not name.endswith("_scale")] == ["model.embed_tokens.weight"]


def test_every_dequantize_has_an_explicit_axis(authored: Path) -> None:
    """Case C48."""
    for node in read(authored).graph.node:
        if node.op_type == "DequantizeLinear":
            assert {attribute.name: attribute.i for attribute in node.attribute} == {"axis": 1, "block_size": 32}


def test_int8_graph_computes_with_exactly_the_quantised_weights(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The INT8 graph on the reference executor equals the f32 graph over fake-quantised weights (case C48)."""
    author_graph(checkpoint, tmp_path / "int8.onnx", "int8")
    faked = Checkpoint("faked", checkpoint.config, _FakeQuantised(checkpoint.weights))
    author_graph(faked, tmp_path / "f32.onnx", "f32")
    logits = []
    for name in ("int8.onnx", "f32.onnx"):
        driver = Driver(TorchExecutor(tmp_path / name, kv_cache_bytes=1 << 20))
        logits.append(driver.prefill(driver.sequence(random_prompt(17, 131))))
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-4)


class _FakeQuantised:
    """Weights as INT8 would leave them, in float32."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __contains__(self, name: str) -> bool:
        return name in self._inner

    def rows(self, name: str) -> Any:
        for piece in self._inner.rows(name):
            yield dequantize_rows(quantize_rows(piece, 32)) if piece.ndim == 2 else piece


# -- refusals -------------------------------------------------------------------------------------------------------


def test_unknown_architecture_lists_those_known() -> None:
    with pytest.raises(CheckpointError, match=r"\['MambaForCausalLM'\] are not known; known: .*LlamaForCausalLM"):
        family_of({"architectures": ["MambaForCausalLM"]})
    assert family_of({"architectures": ["Whatever", "Qwen2ForCausalLM"]}).name == "qwen2"
    assert len(BY_ARCHITECTURE) >= 3


def test_misshapen_tensor_names_both_shapes(checkpoint: Checkpoint, tmp_path: Path) -> None:
    wrong = Checkpoint("wrong", {**checkpoint.config, "intermediate_size": 100}, checkpoint.weights)
    with pytest.raises(
        CheckpointError, match=r"'model.layers.0.mlp.gate_proj.weight' has shape \[160, 96\].*\[100, 96\]"
    ):
        author_graph(wrong, tmp_path / "decoder.onnx", "f32")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, r"key 'hidden_size' is missing"),
        ({"hidden_act": "mish"}, r"activation 'mish' is not known; known: .*silu"),
        ({"rope_parameters": {"rope_type": "spiral"}}, r"rope_type 'spiral' is not known; known: .*llama3"),
        ({"layer_types": ["full_attention"], "sliding_window": 4}, r"layer_types has 1 entries for 2 layers"),
    ],
)
def test_config_that_cannot_be_built(
    checkpoint: Checkpoint, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    wrong = Checkpoint("wrong", {**checkpoint.config, **changes}, checkpoint.weights)
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        author_graph(wrong, tmp_path / "decoder.onnx", "f32")


def test_unknown_precision(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"precision 'int3' cannot be authored; choose one of f32, int8"):
        author_graph(checkpoint, tmp_path / "decoder.onnx", "int3")


def break_axis(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "DequantizeLinear")
    kept = [attribute for attribute in node.attribute if attribute.name != "axis"]
    del node.attribute[:]
    node.attribute.extend(kept)


def break_inputs(model: onnx.ModelProto) -> None:
    model.graph.input.insert(0, model.graph.input.pop())


def break_domain(model: onnx.ModelProto) -> None:
    model.opset_import.append(onnx.helper.make_opsetid("com.other", 1))
    model.graph.node.append(onnx.helper.make_node("Thing", [], ["thing"], domain="com.other"))


def break_attention(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "PagedAttention")
    node.op_type = "OtherAttention"


def break_extent(model: onnx.ModelProto) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.external_data)
    next(entry for entry in tensor.external_data if entry.key == "offset").value = "999999999"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (break_axis, "has no explicit axis"),
        (break_inputs, "inputs are .* the contract says"),
        (break_domain, "domain 'com.other'"),
        (break_attention, "1 PagedAttention nodes for 2 layers"),
        (break_extent, "reaches past the end|not a valid ONNX graph"),
    ],
)
def test_checker_refuses(
    checkpoint: Checkpoint, tmp_path: Path, change: Callable[[onnx.ModelProto], None], message: str
) -> None:
    path = tmp_path / "decoder.onnx"
    author_graph(checkpoint, path, "int8")
    model = read(path)
    change(model)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(GraphCheckError, match=message):
        check_graph(path, config_of(checkpoint).spec)
