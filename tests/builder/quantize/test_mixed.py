"""The mixed-precision file."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from trtbuild.quantize.mixed import MixedPrecision, parse_mixed, read_mixed
from trtdecode.errors import ConfigError


def node(op_type: str, name: str) -> ir.Node:
    return ir.node(op_type, [], name=name)


EXPECTED = (("encoder", "fp16"), ("attention_softmax", "fp32"), ("embedding", "int8"), ("layers.0/*", "fp16"))


@pytest.mark.parametrize(
    "text",
    [
        '{encoder: fp16, attention_softmax: fp32, embedding: int8, "layers.0/*": fp16}',
        "encoder: fp16\nattention_softmax: fp32  # sensitive\n\nembedding: int8\nlayers.0/*: fp16\n",
        "{'encoder': 'fp16',\n 'attention_softmax': 'fp32',\n 'embedding': 'int8',\n 'layers.0/*': 'fp16'}",
    ],
)
def test_forms(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(text)
    assert read_mixed(path) == MixedPrecision(EXPECTED)


def test_later_entries_win() -> None:
    mixed = parse_mixed('{encoder: int8, "layers.0/*": fp16, "layers.0/mlp/Gemm": fp8, norm: fp32}', "m")
    assert mixed.of_node(node("Gemm", "layers.1/mlp/Gemm")) == "int8"
    assert mixed.of_node(node("Gemm", "layers.0/attention/Gemm")) == "fp16"
    assert mixed.of_node(node("Gemm", "layers.0/mlp/Gemm")) == "fp8"
    assert mixed.of_node(node("RMSNormalization", "layers.0/mlp/RMSNormalization")) == "fp32"
    assert mixed.of_node(node("Softmax", "head/Softmax")) is None
    assert mixed.embedding is None


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    nodes = [node("Gemm", "layers.0/mlp/Gemm")]
    parse_mixed("{encoder: fp16, layers.*/mlp/*: fp32, embedding: int8}", "m").require_matches(nodes)
    with pytest.raises(ConfigError, match=r"no node is called 'layer\.0/\*'"):
        parse_mixed("{encoder: fp16, layer.0/*: fp32}", "m").require_matches(nodes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{encoder}", "m: 'encoder' is not of the form `pattern: precision`"),
        ("{encoder: fp7}", "m: encoder: 'fp7'; use one of fp32, fp16, bf16, fp8, int8, int8_weight, int4"),
        ("{embedding: fp32}", "m: embedding: 'fp32'; use one of fp16, bf16, int8"),
        ("{attention_softmax: int8}", "m: attention_softmax: 'int8'; use one of fp32, fp16, bf16"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_mixed(text, "m")
    assert str(caught.value) == message


def test_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not readable as mixed precision"):
        read_mixed(tmp_path / "missing")
