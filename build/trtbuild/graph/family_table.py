"""The table in docs/model_families.md, made from the registry: `python -m trtbuild.graph.family_table`."""

from __future__ import annotations

import sys

from trtbuild.checkpoint.gguf_layout import RULES
from trtbuild.checkpoint.schemes import SCHEMES
from trtbuild.graph.family import EncoderFamily, Family
from trtbuild.graph.registry import ENCODER_FAMILIES, FAMILIES

HEADER = """\
# Model families

Made from the registry by `python -m trtbuild.graph.family_table`; a test keeps it current. Each family is one file in
`build/trtbuild/graph/`, compared in float32 with transformers on random weights (`tests/builder/verify/`): decoders by
the logits of ragged batches and of chunked prefill (error below 1e-3) and 32 cached greedy tokens, encoders by their
embeddings and scores (below 1e-4). Gemma 2 caps its attention scores, which OpenVINO's operator cannot: it needs the
torch executor. Any other architecture is refused with this list.
"""


def family_table() -> str:
    """The whole document."""
    lines = [HEADER, "## Decoders", "", "| family | architectures | GGUF | what it is |", "|---|---|---|---|"]
    lines += [_row(family, ", ".join(_gguf_names(family)) or "-") for family in FAMILIES]
    lines += ["", "## Encoders", "", "| family | architectures | what it is |", "|---|---|---|"]
    lines += [_row(family) for family in ENCODER_FAMILIES]
    lines += ["", "## Quantised checkpoints", "", f"`quant_method`: {', '.join(sorted(SCHEMES))}.", ""]
    return "\n".join(lines)


def _row(family: Family | EncoderFamily, *more: str) -> str:
    return f"| {' | '.join([family.name, ', '.join(family.architectures), *more, _summary(family)])} |"


def _summary(family: Family | EncoderFamily) -> str:
    """The first sentence of the family's module."""
    module = sys.modules[family.build.__module__]
    return (module.__doc__ or "").split("\n\n")[0].replace("\n", " ").strip()


def _gguf_names(family: Family) -> list[str]:
    return [name for name, rules in RULES.items() if rules.architecture in family.architectures]


if __name__ == "__main__":
    sys.stdout.write(family_table())
