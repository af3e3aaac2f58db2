"""SmolLM2 imported once for all executor tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_version(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version folder of SmolLM2-135M-Instruct with f32 and INT8 weights."""
    from trtbuild.pipeline import import_checkpoint

    model_dir = tmp_path_factory.mktemp("repository") / "smollm2"
    return import_checkpoint(smollm2_gguf, model_dir, precisions=("f32", "int8")).version_dir
