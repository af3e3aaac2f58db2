"""Gates that need no server, each with a planted fault."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from trtdecode.manifest import EngineSet, Manifest, entry_of, read_manifest, write_manifest
from trtdecode.promote.gate import Context, Gate
from trtdecode.promote.gates import artefacts, compatibility, engines, memory, parity
from trtdecode.promote.limits import read_limits


@pytest.fixture
def context(tmp_path: Path, chain_version: Path) -> Context:
    """A copy of the chain model's version, and an empty target."""
    source = tmp_path / "chain" / "7"
    shutil.copytree(chain_version, source)
    (tmp_path / "target").mkdir()
    return Context(source, tmp_path / "target", "chain", read_limits(), tmp_path / "golden.jsonl")


def change_manifest(context: Context, **fields: object) -> Manifest:
    manifest = dataclasses.replace(context.manifest, **fields)  # type: ignore[arg-type]
    write_manifest(context.version_dir, manifest)
    return manifest


def test_a_clean_version_passes_the_cheap_gates(context: Context) -> None:
    for gate in (artefacts.GATE, compatibility.GATE, engines.GATE, memory.GATE):
        assert gate.run(context).passed, gate.name


def test_artefacts_refuses_a_wrong_digest(context: Context) -> None:
    data = context.version_dir / "decoder.onnx.data"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    verdict = artefacts.GATE.run(context)
    assert not verdict.passed
    assert "sha256 differs" in verdict.evidence


@pytest.mark.parametrize("name", ["decoder.onnx.tmp", ".ipynb_checkpoints/x.json", "reports/.x.partial", "notes.txt"])
def test_artefacts_refuses_strays(context: Context, name: str) -> None:
    stray = context.version_dir / name
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("x")
    verdict = artefacts.GATE.run(context)
    assert not verdict.passed
    assert name in verdict.evidence


def test_artefacts_refuses_half_a_copy(context: Context) -> None:
    (context.version_dir / "tokenizer.json").unlink()
    assert "tokenizer.json" in artefacts.GATE.run(context).evidence
    (context.version_dir / "manifest.json").unlink()
    assert "not found" in artefacts.GATE.run(context).evidence


def test_compatibility_refuses_fp8_on_ampere(context: Context) -> None:
    engine_set = EngineSet("engines/sm80-fp8", "fp8", 80, "tensorrt", "11.4", "key", ("s",), "digest")
    change_manifest(context, engines=(engine_set,))
    verdict = compatibility.GATE.run(context)
    assert not verdict.passed
    assert "int8" in verdict.evidence  # names what to use instead


def test_compatibility_refuses_a_smaller_context(context: Context, tmp_path: Path) -> None:
    current = tmp_path / "current"
    shutil.copytree(context.version_dir, current)
    old = read_manifest(current)
    write_manifest(current, dataclasses.replace(old, spec=dataclasses.replace(old.spec, max_context_len=99_999)))
    context.current_dir = current
    assert "99999" in compatibility.GATE.run(context).evidence


def test_engines_refuses_a_stale_set(context: Context) -> None:
    engine_set = EngineSet("engines/sm89-fp16", "fp16", 89, "tensorrt-rtx", "1.7.1", "key", ("s.engine",), "old")
    change_manifest(context, engines=(engine_set,))
    verdict = engines.GATE.run(context)
    assert not verdict.passed
    assert "trtdecode build" in verdict.evidence


def test_memory_wants_a_pool_of_known_size(context: Context, tmp_path: Path) -> None:
    context.current_dir = context.version_dir
    model_dir = context.target / "chain"
    model_dir.mkdir()
    config = model_dir / "config.pbtxt"
    config.write_text('backend: "trtdecode"\n')
    assert "needs kv_cache_bytes" in memory.GATE.run(context).evidence
    config.write_text('parameters { key: "kv_cache_bytes" value { string_value: "64MiB" } }\n')
    verdict = memory.GATE.run(context)
    assert verdict.passed
    assert verdict.figures["needed_bytes"] > 64 << 20
    config.write_text('parameters { key: "kv_cache_bytes" value { string_value: "4096GiB" } }\n')
    assert not memory.GATE.run(context).passed
    context.mode = "replace"
    assert memory.GATE.run(context).passed


def test_parity_compares_executors_and_refuses_beyond_its_limit(context: Context) -> None:
    verdict = parity.GATE.run(context)
    assert verdict.passed, verdict.evidence
    assert verdict.figures["f32"]["num_rows"] > 10
    strict = dataclasses.replace(context.limits.parity, min_argmax_agreement=1.01)
    context.limits = dataclasses.replace(context.limits, parity=strict)
    refused = parity.GATE.run(context)
    assert not refused.passed
    assert "argmax agreement is 1, limit 1.01" in refused.evidence


def test_an_error_in_a_gate_is_a_refusal(context: Context) -> None:
    def ask(context: Context) -> tuple[bool, str, dict[str, object]]:
        raise OSError("disk gone")

    verdict = Gate("x", ask).run(context)
    assert (verdict.passed, verdict.evidence) == (False, "disk gone")


def test_a_changed_weight_with_a_renewed_manifest_is_left_to_golden(context: Context) -> None:
    """Checksums cannot see it; test_promotion.py shows that the golden gate does."""
    data = context.version_dir / "decoder.onnx.data"
    content = bytearray(data.read_bytes())
    content[-4096:] = bytes(4096)
    data.write_bytes(content)
    files = {**context.manifest.files, data.name: entry_of(data)}
    change_manifest(context, files=files)
    assert artefacts.GATE.run(context).passed
    assert json.loads((context.version_dir / "manifest.json").read_text())["files"][data.name]["num_bytes"] == len(
        content
    )
