"""The document of model families says what the registry says."""

from __future__ import annotations

from pathlib import Path

from trtbuild.graph.family_table import family_table

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "model_families.md"


def test_document_is_current() -> None:
    assert DOCUMENT.read_text("utf-8") == family_table(), (
        "run: python -m trtbuild.graph.family_table > docs/model_families.md"
    )
