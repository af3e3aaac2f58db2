"""Raw scores of rerankers and classifiers -> what clients see."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trtdecode.manifest import SCORE_ACTIVATIONS

Scores = npt.NDArray[np.float32]


def activate(scores: Scores, activation: str) -> Scores:
    """f32 [k, labels] from raw scores of that shape.

    Args:
        activation: one of SCORE_ACTIVATIONS.
    """
    assert activation in SCORE_ACTIVATIONS, activation
    if activation == "identity":
        return scores
    if activation == "sigmoid":
        clipped = np.clip(scores, -80, 80)  # exp() of more overflows f32
        sigmoid: Scores = (1 / (1 + np.exp(-clipped))).astype(np.float32)
        return sigmoid
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    softmax: Scores = (shifted / shifted.sum(axis=-1, keepdims=True)).astype(np.float32)
    return softmax


def names_array(names: list[str]) -> npt.NDArray[Any]:
    """Texts as Triton's BYTES."""
    array = np.empty(len(names), np.object_)
    array[:] = [name.encode("utf-8") for name in names]
    return array
