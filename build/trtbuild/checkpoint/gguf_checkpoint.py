"""Opens a GGUF file as a Checkpoint in Hugging Face's naming."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.base import Checkpoint, Float32, missing_tensor
from trtbuild.checkpoint.gguf_codes import BITS
from trtbuild.checkpoint.gguf_config import Metadata, config_from_metadata
from trtbuild.checkpoint.gguf_file import GgufFile
from trtbuild.checkpoint.gguf_layout import TensorLayout, transpose
from trtbuild.checkpoint.gguf_tokenizer import tokenizer_files
from trtbuild.checkpoint.grouped_codes import GroupedCodes

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
ROPE_FACTORS = {"freqs": "rope_freqs.weight", "short": "rope_factors_short.weight", "long": "rope_factors_long.weight"}


class GgufWeights:
    """Tensors of one GGUF file under Hugging Face's names."""

    def __init__(self, file: GgufFile, layout: TensorLayout) -> None:
        self._file = file
        self._layout = layout

    def names(self) -> list[str]:
        """GGUF's own names: what is in the file."""
        return list(self._file.entries)

    def __contains__(self, name: str) -> bool:
        return self._layout.gguf_name(name) in self._file.entries

    def shape(self, name: str) -> tuple[int, ...]:
        stored = self._file.entries[self._stored(name)].shape
        return stored[::-1] if self._layout.restore(name) is transpose else stored

    def rows(self, name: str) -> Iterator[Float32]:
        pieces = self._file.rows(self._stored(name))
        restore = self._layout.restore(name)
        if restore is None:
            yield from pieces
        else:
            yield restore(np.concatenate(list(pieces)))

    def codes(self, name: str) -> GroupedCodes | None:
        codes = self._file.codes(self._stored(name))
        restore = self._layout.restore(name)
        if codes is None or restore is None:
            return codes
        if not self._layout.reorders_rows(name):
            return None
        # What is restored is the order of rows, and scales have the same rows.
        order = restore(np.arange(codes.codes.shape[0], dtype=np.float32)).astype(np.int64)
        zeros = None if codes.zeros is None else codes.zeros[order]
        return dataclasses.replace(codes, codes=codes.codes[order], scales=codes.scales[order], zeros=zeros)

    def common_bits(self) -> int | None:
        sizes: Counter[int | None] = Counter()
        for name, entry in self._file.entries.items():
            if len(entry.shape) == 2:
                sizes[BITS.get(self._file.type_name(name))] += math.prod(entry.shape)
        return sizes.most_common(1)[0][0] if sizes else None

    def _stored(self, name: str) -> str:
        stored = self._layout.gguf_name(name)
        if stored not in self._file.entries:
            raise missing_tensor(stored, self.names(), self._file.path)
        return stored


def open_gguf(path: Path) -> Checkpoint:
    """Opens a GGUF file.

    Raises:
        CheckpointError: not GGUF, truncated, an unknown architecture, or no embedding.
    """
    file = GgufFile(path)
    meta = Metadata(path, file.metadata)
    if EMBEDDING not in file.entries:
        raise missing_tensor(EMBEDDING, list(file.entries), path)
    factors = {
        kind: [float(value) for piece in file.rows(name) for value in piece]
        for kind, name in ROPE_FACTORS.items()
        if name in file.entries
    }
    try:
        config = config_from_metadata(meta, file.entries[EMBEDDING].shape[0], HEAD in file.entries, factors)
        layout = TensorLayout(meta.architecture, config)
    except KeyError as error:
        raise CheckpointError(
            f"{path}: metadata key for {error} is missing; the file is not a complete model"
        ) from None
    return Checkpoint(str(path), config, GgufWeights(file, layout), tokenizer_files(path, file.metadata))
