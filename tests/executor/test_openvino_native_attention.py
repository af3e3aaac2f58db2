"""Our attention operator against float64, with every instruction set; and which graphs it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest
from conformance.driver import Driver
from conformance.numpy_reference import NumpyDecoder
from conformance.tiny_graph import TinySpec
from executor.native_attention import Layer, Operator, Reference, Tokens, layer, random_tokens
from onnx import helper
from trtdecode.errors import ConfigError
from trtdecode.executor import openvino_native_attention
from trtdecode.executor.openvino_attention import read_decoder
from trtdecode.executor.openvino_executor import OpenVinoExecutor

pytestmark = pytest.mark.skipif(openvino_native_attention.library() is None, reason="the native attention is not built")

LAYERS = {
    "grouped": layer(9, 3, 64, rotary_dim=64),
    "two-to-one": layer(4, 2, 128, rotary_dim=128),
    "seven-to-one": layer(7, 1, 80, rotary_dim=32),  # partial rotation; 7 rows are more than any kernel takes at once
    "odd-width": layer(2, 2, 20, rotary_dim=12),
    "interleaved": layer(4, 1, 16, rotary_dim=8, interleaved=True),
    "narrow": layer(1, 1, 4),
    "window": layer(6, 2, 32, rotary_dim=32, sliding_window=37),
    "softcap": layer(4, 2, 32, rotary_dim=32, softcap=0.5),
    "alibi": layer(4, 4, 32, alibi_slopes=(0.5, 0.25, 0.125, 0.0625)),
}
GROUPED = LAYERS["grouped"]


@pytest.fixture(params=["avx512", "avx2", "baseline"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    before = openvino_native_attention.kernels_in_use()
    if not openvino_native_attention.use_kernels(request.param):
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    openvino_native_attention.use_kernels(before)


def in_steps(operator: Operator, tokens: Tokens, counts: list[int]) -> np.ndarray:
    return np.concatenate([operator.step((tokens, count))[0] for count in counts])


@pytest.mark.parametrize("tested", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "separate"])
@pytest.mark.usefixtures("kernels")
def test_prompts_and_decoding_give_the_reference(tested: Layer, packed: bool) -> None:
    """Over the ends of blocks (32) and of chunks of scores (256)."""
    tokens = random_tokens(tested, 300, seed=0)
    operator = Operator(tested, kv_cache_precision="f32", packed=packed)
    counts = [1, 1, 29, 1, 1, 1, 200, *[1] * 30, 33, 1, 1, 1]
    assert sum(counts) == len(tokens.qkv)
    np.testing.assert_allclose(in_steps(operator, tokens, counts), Reference(tested).outputs(tokens), atol=5e-6, rtol=0)


@pytest.mark.parametrize("tested", LAYERS.values(), ids=LAYERS)
@pytest.mark.usefixtures("kernels")
def test_8_bit_caches_hold_256_steps_of_each_token_and_head(tested: Layer) -> None:
    """A number halfway between two steps may go to either: one in a thousand, and each weighs little."""
    tokens = random_tokens(tested, 70, seed=1)
    operator = Operator(tested, kv_cache_precision="u8")
    outputs = in_steps(operator, tokens, [60, *[1] * 10])
    rounded = Reference(tested, rounding=True).outputs(tokens)
    np.testing.assert_allclose(outputs, rounded, atol=1e-2, rtol=0)
    assert np.abs(outputs - rounded).mean() < 2e-5
    assert np.abs(outputs - Reference(tested).outputs(tokens)).mean() > 2e-4, "the comparison sees the rounding"


@pytest.mark.parametrize("kv_cache_precision", ["f32", "u8"])
@pytest.mark.parametrize("tested", [GROUPED, LAYERS["window"], LAYERS["odd-width"]], ids=["grouped", "window", "odd"])
@pytest.mark.usefixtures("kernels")
def test_a_sequence_depends_on_itself_alone(tested: Layer, kv_cache_precision: str) -> None:
    """Bit for bit the same however a prompt is cut, among others, and on one thread or two."""
    counts = [33, 7, 250, 10]
    alone = in_steps(
        Operator(tested, kv_cache_precision=kv_cache_precision, num_threads=1), random_tokens(tested, 300, 2), [300]
    )
    operator = Operator(tested, kv_cache_precision=kv_cache_precision)
    mine, other, third = (random_tokens(tested, num, 2, first) for num, first in ((300, 1), (90, 11), (40, 21)))
    parts = []
    for count, others in zip(counts, ([(other, 80)], [(third, 1)], [(other, 1), (third, 1)], []), strict=True):
        parts.append(operator.step(*others, (mine, count))[-1])
    np.testing.assert_array_equal(np.concatenate(parts), alone)
    one_by_one = Operator(tested, kv_cache_precision=kv_cache_precision)
    np.testing.assert_array_equal(in_steps(one_by_one, random_tokens(tested, 300, 2), [1] * 300), alone)


@pytest.mark.parametrize("kv_cache_precision", ["f32", "u8"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.usefixtures("kernels")
def test_a_number_that_is_none_shows_in_its_own_sequence_only(kv_cache_precision: str, number: float) -> None:
    """Wherever it stands in Q, K or V."""
    for column in (5, 9 * 64 + 70, 12 * 64 + 130):  # head 0's query, KV head 1's key, KV head 2's value
        ill, well = random_tokens(GROUPED, 40, 3), random_tokens(GROUPED, 40, 4, first_block=11)
        expected = Reference(GROUPED, rounding=kv_cache_precision == "u8").outputs(well)
        ill.qkv[20, column] = number
        operator = Operator(GROUPED, kv_cache_precision=kv_cache_precision)
        outputs, neighbours = operator.step((ill, 40), (well, 40))
        assert not np.isfinite(outputs[20]).all()
        np.testing.assert_allclose(neighbours, expected, atol=1e-2, rtol=0)
        if column > 9 * 64:
            assert not np.isfinite(outputs[39]).all(), "later tokens see the key or value"
        if kv_cache_precision == "u8":
            assert np.isfinite(outputs[:20]).all(), "earlier tokens do not"


def test_equal_numbers_need_no_scale() -> None:
    tokens = Tokens(np.full((5, sum(GROUPED.widths)), 0.25, np.float32), [1])
    outputs = Operator(GROUPED, kv_cache_precision="u8").step((tokens, 5))[0]
    np.testing.assert_array_equal(outputs, np.float32(0.25))


def test_kernels_have_names() -> None:
    assert openvino_native_attention.kernels_in_use() in ("avx512", "avx2", "baseline")
    assert not openvino_native_attention.use_kernels("sse9")


def read(path: Path, attention: str = "auto") -> tuple[ov.Model, str]:
    return read_decoder(ov.Core(), path, attention=attention, kv_cache_precision="f32")


def test_a_layer_is_one_operator_from_the_projection_to_the_output(tmp_path: Path) -> None:
    model, operator = read(TinySpec().write(tmp_path))
    assert operator == f"native {openvino_native_attention.kernels_in_use()}"
    attention = [node for node in model.get_ordered_ops() if node.get_type_name() == "PagedAttention"]
    assert [node.get_input_size() for node in attention] == [4, 4]
    assert all(node.input_value(0).get_node().get_type_name() == "MatMul" for node in attention)
    assert len({node.input_value(index).get_node().get_name() for node in attention for index in (1, 3)}) == 2


def test_no_library_means_openvinos_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = TinySpec().write(tmp_path)
    monkeypatch.setattr(openvino_native_attention, "library", lambda: None)
    openvino_native_attention.why_unavailable.cache_clear()
    assert read(path)[1] == "openvino"
    with pytest.raises(ConfigError, match=r"libtrtdecode_openvino\.so is not built: it needs a C\+\+ compiler"):
        read(path, "native")
    openvino_native_attention.why_unavailable.cache_clear()
    with pytest.raises(ConfigError, match="attention: the openvino executor has no 'flash'; use one of auto, native"):
        read(path, "flash")


@pytest.mark.parametrize("shared", ["key", "nothing but another rotation"])
def test_rotations_outside_attention_keep_openvinos_operator(tmp_path: Path, shared: str) -> None:
    """A rotated key that something else reads too, or a query rotated otherwise than its key."""
    path = TinySpec().write(tmp_path)
    graph = onnx.load(str(path), load_external_data=False)
    rotations = [node for node in graph.graph.node if node.op_type == "RotaryEmbedding"]
    if shared == "key":
        attention = next(node for node in graph.graph.node if node.op_type == "PagedAttention")
        out = next(node for node in graph.graph.node if attention.output[0] in node.input)
        zero = onnx.numpy_helper.from_array(np.zeros((64, 192), np.float32), "zero_weight")
        graph.graph.initializer.append(zero)
        nodes = [
            helper.make_node("MatMul", [attention.input[1], "zero_weight"], ["nothing"]),
            helper.make_node("Add", [attention.output[0], "nothing"], ["sum"]),
        ]
        out.input[list(out.input).index(attention.output[0])] = "sum"
        at = list(graph.graph.node).index(attention) + 1
        for offset, node in enumerate(nodes):
            graph.graph.node.insert(at + offset, node)
    else:
        rotations[1].attribute.append(helper.make_attribute("interleaved", 1))
    onnx.save(graph, str(path))
    model, operator = read(path)
    assert operator == "openvino"
    assert "Abs" not in {node.get_type_name() for node in model.get_ordered_ops()}, "rotations are rotations"
    with pytest.raises(ConfigError, match="rotates more than the queries and keys of attention"):
        read(path, "native")


def test_8_bit_logits_do_not_depend_on_how_a_prompt_was_cut(tmp_path: Path) -> None:
    """A token is rounded by itself. (OpenVINO's operator rounds a key block by channel, so it depends on the cut.)"""
    spec = TinySpec()
    tokens = np.random.default_rng(1).integers(0, spec.vocab_size, 70).tolist()
    driver = Driver(
        OpenVinoExecutor(spec.write(tmp_path), kv_cache_bytes=1 << 22, kv_cache_precision="u8", num_threads=1)
    )
    whole = driver.prefill(driver.sequence(tokens))
    for chunk in (1, 7, 33):
        np.testing.assert_allclose(driver.prefill(driver.sequence(tokens), chunk), whole, atol=2e-5, rtol=0)
    np.testing.assert_allclose(whole, NumpyDecoder(spec).logits(tokens), atol=0.5, rtol=0)
