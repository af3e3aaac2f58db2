"""The manifest: round trip, and every way in which a version folder can differ from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trtdecode.errors import ManifestError
from trtdecode.manifest import (
    EngineSet,
    Manifest,
    ModelSpec,
    entry_of,
    read_manifest,
    sha256_of,
    verify_files,
    write_manifest,
)

SPEC = ModelSpec("llama", 2, 96, 6, 2, 16, 131, 256, (0, 64), bos_token_id=1, eos_token_ids=(2, 7))
ENGINES = EngineSet("engines/89-fp16", "fp16", 89, "tensorrt-rtx", "1.7.1", "key", ("segment_000.engine",), "ab12")


@pytest.fixture
def version_dir(tmp_path: Path) -> Path:
    (tmp_path / "decoder.onnx").write_bytes(b"graph")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    files = {name: entry_of(tmp_path / name) for name in ("decoder.onnx", "tokenizer.json")}
    manifest = Manifest(SPEC, "source", {"f32": "decoder.onnx"}, files, (ENGINES,), {"onnx": "1.23"})
    write_manifest(tmp_path, manifest)
    return tmp_path


def edit(version_dir: Path, **changes: Any) -> None:
    path = version_dir / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_round_trip(version_dir: Path) -> None:
    manifest = read_manifest(version_dir)
    assert manifest.spec == SPEC
    assert manifest.engines == (ENGINES,)
    assert manifest.builder == {"onnx": "1.23"}
    verify_files(version_dir, manifest)
    write_manifest(version_dir, manifest)
    assert read_manifest(version_dir) == manifest


def test_no_partial_file_is_left(version_dir: Path) -> None:
    assert sorted(path.name for path in version_dir.iterdir()) == ["decoder.onnx", "manifest.json", "tokenizer.json"]


def test_digest_is_sha256(version_dir: Path) -> None:
    assert sha256_of(version_dir / "tokenizer.json") == (
        "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    )


def test_kv_bytes() -> None:
    assert SPEC.kv_bytes_per_token(4.0) == 2 * 2 * 2 * 16 * 4


def test_missing_manifest_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"manifest\.json: not found; create the version with `trtdecode import`"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'"x"', b"{}"])
def test_unreadable_manifest(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(ManifestError, match=r"manifest\.json.*import the model again"):
        read_manifest(tmp_path)


def test_other_format_version(version_dir: Path) -> None:
    edit(version_dir, format_version=99)
    with pytest.raises(ManifestError, match=r"format_version 99, this trtdecode reads \d"):
        read_manifest(version_dir)


@pytest.mark.parametrize("key", ["spec", "files", "graphs", "engines", "builder", "source"])
def test_missing_field_is_named(version_dir: Path, key: str) -> None:
    raw = json.loads((version_dir / "manifest.json").read_text())
    del raw[key]
    (version_dir / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(ManifestError, match=key):
        read_manifest(version_dir)


def test_unknown_field_of_the_spec_is_an_error(version_dir: Path) -> None:
    raw = json.loads((version_dir / "manifest.json").read_text())
    edit(version_dir, spec={**raw["spec"], "colour": "red"})
    with pytest.raises(ManifestError, match="colour"):
        read_manifest(version_dir)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", ""])
def test_file_names_must_stay_inside_the_folder(version_dir: Path, name: str) -> None:
    raw = json.loads((version_dir / "manifest.json").read_text())
    edit(version_dir, files={**raw["files"], name: {"sha256": "0" * 64, "num_bytes": 1}})
    with pytest.raises(ManifestError, match="not a relative path inside the version folder"):
        read_manifest(version_dir)


def test_graph_must_be_a_listed_file(version_dir: Path) -> None:
    edit(version_dir, graphs={"f32": "other.onnx"})
    with pytest.raises(ManifestError, match=r"graph 'other\.onnx' of precision f32 is not among the files"):
        read_manifest(version_dir)


def test_precision_that_is_not_there_names_those_present(version_dir: Path) -> None:
    manifest = read_manifest(version_dir)
    assert manifest.graph_file("f32") == "decoder.onnx"
    with pytest.raises(ManifestError, match=r"'int8' is not in this version \(present: f32\).*--precision int8"):
        manifest.graph_file("int8")


def test_missing_file(version_dir: Path) -> None:
    (version_dir / "tokenizer.json").unlink()
    with pytest.raises(ManifestError, match=r"tokenizer\.json: listed in the manifest but missing"):
        verify_files(version_dir, read_manifest(version_dir))


def test_other_size(version_dir: Path) -> None:
    (version_dir / "tokenizer.json").write_bytes(b"{ }")
    with pytest.raises(ManifestError, match=r"tokenizer\.json: 3 bytes, manifest says 2"):
        verify_files(version_dir, read_manifest(version_dir), digests=False)


def test_one_changed_bit(version_dir: Path) -> None:
    (version_dir / "decoder.onnx").write_bytes(b"grapi")
    manifest = read_manifest(version_dir)
    verify_files(version_dir, manifest, digests=False)
    with pytest.raises(ManifestError, match=r"decoder\.onnx: sha256 differs"):
        verify_files(version_dir, manifest)


def test_only_the_named_files_are_looked_at(version_dir: Path) -> None:
    (version_dir / "decoder.onnx").write_bytes(b"changed")
    manifest = read_manifest(version_dir)
    verify_files(version_dir, manifest, names={"tokenizer.json"})
    with pytest.raises(ManifestError, match=r"'weights\.bin' is not in the manifest"):
        verify_files(version_dir, manifest, names={"weights.bin"})
