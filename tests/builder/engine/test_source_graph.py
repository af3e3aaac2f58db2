"""Which graph engines come from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from trtbuild.engine.source_graph import reference_name, source_name
from trtdecode.errors import ManifestError
from trtdecode.manifest import Manifest, read_manifest


@pytest.mark.parametrize(
    ("graphs", "precision", "source", "reference"),
    [
        (("f32", "int8"), "fp8", "f32", "f32"),
        (("int8",), "fp8", "int8", "int8"),
        (("int4", "f32"), "int4", "int4", "f32"),
        (("int4", "int8"), "int4", "int4", "int4"),
        (("int4", "int8"), "fp16", "int8", "int8"),
        (("int4",), "int8_weight", "int4", "int4"),
    ],
)
def test_choice(tiny_template: Path, graphs: tuple[str, ...], precision: str, source: str, reference: str) -> None:
    manifest = with_graphs(tiny_template, *graphs)
    assert source_name(manifest, precision) == source
    assert reference_name(manifest, source) == reference


def with_graphs(version: Path, *graphs: str) -> Manifest:
    return dataclasses.replace(read_manifest(version), graphs={name: f"decoder.{name}.onnx" for name in graphs})


def test_nothing_to_build_from(tiny_template: Path) -> None:
    with pytest.raises(ManifestError, match=r"no graph to build fp8 engines from \(present: f16\)"):
        source_name(with_graphs(tiny_template, "f16"), "fp8")
