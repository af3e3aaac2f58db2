"""Publishing: whole or not at all."""

import threading
from pathlib import Path

import pytest
from trtdecode.errors import ManifestError
from trtdecode.manifest import Manifest, ModelSpec, RankLayout, entry_of, read_manifest, write_manifest
from trtdecode.promote.gate import Context
from trtdecode.promote.gates import artefacts, compatibility, engines, memory
from trtdecode.promote.limits import read_limits
from trtdecode.promote.publish import PromotionError, equal_version, model_lock, publish, versions, withdraw

SPEC = ModelSpec("llama", 1, 8, 2, 1, 4, 32, 64, (0,))


def make_version(folder: Path, content: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "decoder.onnx").write_bytes(content)
    (folder / "engines").mkdir()
    (folder / "engines" / "a.engine").write_bytes(b"engine")
    (folder / "reports").mkdir()
    (folder / "reports" / "parity.json").write_text("{}")
    files = {name: entry_of(folder / name) for name in ("decoder.onnx", "engines/a.engine")}
    write_manifest(folder, Manifest(SPEC, "test", {"f32": "decoder.onnx"}, files))
    return folder


def test_a_version_arrives_whole_and_without_strays(tmp_path: Path) -> None:
    source = make_version(tmp_path / "source")
    (source / "notes.tmp").write_text("x")
    model_dir = tmp_path / "repository" / "m"
    model_dir.mkdir(parents=True)
    target = publish(source, model_dir, 3)
    assert target == model_dir / "3"
    assert (target / "engines" / "a.engine").read_bytes() == b"engine"
    assert (target / "reports" / "parity.json").is_file()
    assert not (target / "notes.tmp").exists()
    assert read_manifest(target) == read_manifest(source)
    assert [path.name for path in model_dir.iterdir()] == ["3"]


def make_split_version(folder: Path) -> Path:
    """Two ranks, each a version folder of its own."""
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    files = {"tokenizer.json": entry_of(folder / "tokenizer.json")}
    write_manifest(folder, Manifest(SPEC, "test", {}, files, ranks=RankLayout(2, 1)))
    for rank in range(2):
        make_version(folder / f"rank_{rank}", f"weights {rank}".encode())
    return folder


def test_a_split_version_arrives_with_all_its_ranks(tmp_path: Path) -> None:
    source = make_split_version(tmp_path / "source")
    model_dir = tmp_path / "m"
    model_dir.mkdir()
    target = publish(source, model_dir, 1)
    for rank in range(2):
        assert (target / f"rank_{rank}" / "decoder.onnx").read_bytes() == f"weights {rank}".encode()
        assert (target / f"rank_{rank}" / "reports" / "parity.json").is_file()
    context = Context(target, model_dir, "m", read_limits(), tmp_path / "golden.jsonl")
    for gate in (artefacts.GATE, compatibility.GATE, engines.GATE, memory.GATE):
        verdict = gate.run(context)
        assert verdict.passed, verdict.evidence
    (target / "rank_1" / "notes.txt").write_text("x")
    assert "notes.txt" in artefacts.GATE.run(context).evidence
    (source / "rank_1" / "decoder.onnx").write_bytes(b"WEIGHTS 1")
    with pytest.raises(ManifestError, match=r"rank_1/decoder\.onnx: sha256 differs"):
        publish(source, model_dir, 2)


def test_a_file_that_changed_is_noticed_and_nothing_is_left(tmp_path: Path) -> None:
    source = make_version(tmp_path / "source")
    (source / "decoder.onnx").write_bytes(b"WEIGHTS")
    model_dir = tmp_path / "m"
    model_dir.mkdir()
    with pytest.raises(ManifestError, match="sha256 differs"):
        publish(source, model_dir, 1)
    assert list(model_dir.iterdir()) == []


def test_a_taken_number_and_a_missing_file(tmp_path: Path) -> None:
    source = make_version(tmp_path / "source")
    model_dir = tmp_path / "m"
    (model_dir / "1").mkdir(parents=True)
    with pytest.raises(PromotionError, match="exists already"):
        publish(source, model_dir, 1)
    (source / "decoder.onnx").unlink()
    with pytest.raises(PromotionError, match="nothing was changed"):
        publish(source, model_dir, 2)
    assert [path.name for path in model_dir.iterdir()] == ["1"]


def test_what_a_killed_promotion_left_is_cleared(tmp_path: Path) -> None:
    source = make_version(tmp_path / "source")
    model_dir = tmp_path / "m"
    (model_dir / ".1.partial").mkdir(parents=True)
    (model_dir / ".1.partial" / "junk").write_text("x")
    publish(source, model_dir, 1)
    assert sorted(path.name for path in model_dir.iterdir()) == ["1"]
    assert not (model_dir / "1" / "junk").exists()


@pytest.mark.parametrize("name", ["latest", "01", "1.bak", ".2", "-1", "٣", "2 "])
def test_only_plain_numbers_are_versions(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "10").mkdir()
    (tmp_path / "9").mkdir()
    (tmp_path / "11").write_text("a file")
    assert versions(tmp_path) == [9, 10]


def test_equal_artefacts_are_found_and_changed_ones_are_not(tmp_path: Path) -> None:
    source = make_version(tmp_path / "source")
    model_dir = tmp_path / "m"
    model_dir.mkdir()
    assert equal_version(model_dir, source) is None
    publish(source, model_dir, 1)
    assert equal_version(model_dir, source) == 1
    assert equal_version(model_dir, make_version(tmp_path / "other", b"changed")) is None
    withdraw(model_dir, 1)
    assert equal_version(model_dir, source) is None
    assert versions(model_dir) == []


def test_two_promotions_at_once_are_refused(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with model_lock(tmp_path, "m"):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(10)
    with pytest.raises(PromotionError, match="another promotion of m runs now"), model_lock(tmp_path, "m"):
        pass
    with model_lock(tmp_path, "other"):
        pass
    leave.set()
    thread.join()
    with model_lock(tmp_path, "m"):
        pass
