"""The contract of encoder graphs (`task` embed, rerank, classify): no cache, whole texts, a ragged list of tokens.

Everything but attention runs on the T tokens of the batch and nothing else. Attention alone is padded: `pad_indices`
lays the tokens out as [B, L], `unpad_indices` takes them back. With texts of one length neither adds work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

#: Inputs of an encoder graph, in the order of the contract.
ENCODER_INPUTS = ("input_ids", "positions", "token_types", "query_begins", "pad_indices", "unpad_indices", "pad_mask")
EMBEDDING_OUTPUT = "embedding"  # f32 [B, hidden], pooled and normalised as the model's own files say
SCORES_OUTPUT = "scores"  # f32 [B, labels], raw logits of rerankers and classifiers


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """B texts of T tokens in all, the longest of L tokens. Field names are the graph's input names."""

    input_ids: npt.NDArray[np.int64]  # [T]
    positions: npt.NDArray[np.int64]  # [T] from 0 in each text
    token_types: npt.NDArray[np.int64]  # [T] 0, or 1 for the second text of a pair
    query_begins: npt.NDArray[np.int32]  # [B + 1] half-open ranges into T
    pad_indices: npt.NDArray[np.int64]  # [B, L] token at each padded place; 0 where there is none
    unpad_indices: npt.NDArray[np.int64]  # [T] place of each token in the flattened [B * L]
    pad_mask: npt.NDArray[np.float32]  # [B, L] 1 for a token, 0 for padding


class EncoderExecutor(Protocol):
    """Runs encoder batches. Not thread-safe."""

    name: str  # "openvino", "torch"

    def execute(self, batch: EncoderBatch) -> npt.NDArray[np.float32]:
        """The graph's output: f32 [B, hidden] or [B, labels], the caller's own. Raises whatever the runtime raises."""
        ...

    def describe(self) -> dict[str, str]:
        """Facts for the log: device and precision."""
        ...

    def close(self) -> None:
        """Frees the runtime. Idempotent."""
        ...


def pack(texts: Sequence[Sequence[int]], token_types: Sequence[Sequence[int]] | None = None) -> EncoderBatch:
    """Lays texts of token ids out as one batch.

    Args:
        texts: one or more texts of at least one token each.
        token_types: as long as `texts`, text by text; all zeros when None.
    """
    lengths = np.array([len(text) for text in texts], np.int64)
    if len(lengths) == 0 or lengths.min() < 1:
        raise ValueError("an encoder batch needs one or more texts of at least one token each")
    begins = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(lengths.max())
    present = places < lengths[:, None]  # [B, L]
    return EncoderBatch(
        input_ids=np.concatenate([np.asarray(text, np.int64) for text in texts]),
        positions=np.concatenate([np.arange(length) for length in lengths]),
        token_types=_joined(token_types) if token_types is not None else np.zeros(begins[-1], np.int64),
        query_begins=begins.astype(np.int32),
        pad_indices=np.where(present, begins[:-1, None] + places, 0),
        unpad_indices=np.flatnonzero(present),
        pad_mask=present.astype(np.float32),
    )


def _joined(parts: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.asarray(part, np.int64) for part in parts])
