"""The families, chosen by the `architectures` of a checkpoint's config."""

from __future__ import annotations

from trtdecode.errors import CheckpointError

from trtbuild.graph import llama
from trtbuild.graph.config import RawConfig
from trtbuild.graph.family import Family

FAMILIES: tuple[Family, ...] = (llama.LLAMA, llama.MISTRAL, llama.QWEN2)

BY_ARCHITECTURE: dict[str, Family] = {name: family for family in FAMILIES for name in family.architectures}


def family_of(raw: RawConfig) -> Family:
    """The family of a config. Raises CheckpointError listing the architectures that are known."""
    names = raw.get("architectures") or []
    for name in names:
        if name in BY_ARCHITECTURE:
            return BY_ARCHITECTURE[name]
    raise CheckpointError(
        f"config.json: architectures {list(names)} are not known; known: {', '.join(sorted(BY_ARCHITECTURE))}"
    )
