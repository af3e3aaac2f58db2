"""The families, chosen by the `architectures` of a checkpoint's config."""

from __future__ import annotations

from trtdecode.errors import CheckpointError

from trtbuild.graph import (
    bert,
    bloom,
    falcon,
    gemma,
    gpt2,
    gpt_neox,
    llama,
    mixtral,
    modernbert,
    opt,
    phi,
    phi3,
    smollm3,
)
from trtbuild.graph.config import RawConfig
from trtbuild.graph.family import EncoderFamily, Family

FAMILIES: tuple[Family, ...] = (
    llama.LLAMA,
    llama.MISTRAL,
    llama.QWEN2,
    llama.QWEN3,
    smollm3.SMOLLM3,
    phi3.PHI3,
    mixtral.MIXTRAL,
    gemma.GEMMA,
    gemma.GEMMA2,
    gemma.GEMMA3,
    gpt2.GPT2,
    gpt_neox.GPT_NEOX,
    opt.OPT,
    phi.PHI,
    bloom.BLOOM,
    falcon.FALCON,
)

ENCODER_FAMILIES: tuple[EncoderFamily, ...] = (bert.BERT, bert.ROBERTA, modernbert.MODERNBERT)

ALL_FAMILIES: tuple[Family | EncoderFamily, ...] = (*FAMILIES, *ENCODER_FAMILIES)

BY_ARCHITECTURE: dict[str, Family | EncoderFamily] = {
    name: family for family in ALL_FAMILIES for name in family.architectures
}


def family_of(raw: RawConfig) -> Family | EncoderFamily:
    """The family of a config. Raises CheckpointError listing the architectures that are known."""
    names = raw.get("architectures") or []
    for name in names:
        if name in BY_ARCHITECTURE:
            return BY_ARCHITECTURE[name]
    raise CheckpointError(
        f"config.json: architectures {list(names)} are not known; known: {', '.join(sorted(BY_ARCHITECTURE))}"
    )
