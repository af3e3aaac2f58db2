"""The sampler's stages in plain numpy, one function each: the reference, and the path without the native module.

    edit     logit bias -> banned tokens (bad words, min_tokens) -> guide mask -> repetition -> frequency, presence
    keep     min-p -> top-k -> top-p          (on the processed logits; see weights.py)
    choose   greedy: the greatest; else a draw over the kept tokens' weights

A token set by any of the first three to -inf cannot be chosen: the penalties keep -inf. The order is vLLM's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trtdecode.sampling.params import SamplingParams
from trtdecode.sampling.weights import FloatRow, IdRow, leading, scaled_logits, softmax_weights

Ids = npt.NDArray[np.int32]

# What `choose` says instead of a token.
NO_TOKEN_LEFT = -1  # every token is excluded
NOT_FINITE = -2  # the row holds NaN or +inf


def no_ids() -> Ids:
    return np.empty(0, np.int32)


def no_values() -> FloatRow:
    return np.empty(0, np.float32)


@dataclass(slots=True)
class RowEdits:
    """What changes one row of logits at this step. Token ids are below the vocabulary size."""

    bias_ids: Ids = field(default_factory=no_ids)
    bias_values: FloatRow = field(default_factory=no_values)  # one a bias id
    banned_ids: Ids = field(default_factory=no_ids)
    mask: npt.NDArray[np.uint32] | None = None  # [ceil(V / 32)] bit i of word w: token 32 * w + i is allowed
    seen_ids: Ids = field(default_factory=no_ids)  # tokens of prompt and output, each once
    seen_counts: Ids = field(default_factory=no_ids)  # how often each is in the output; 0: in the prompt only


def edit_logits(logits: FloatRow, params: SamplingParams, edits: RowEdits) -> FloatRow:
    """A new row: the logits [V] after bias, bans, guide and penalties."""
    row = logits.copy()
    add_bias(row, edits.bias_ids, edits.bias_values)
    row[edits.banned_ids] = -np.inf
    if edits.mask is not None:
        apply_mask(row, edits.mask)
    penalize(row, params, edits.seen_ids, edits.seen_counts)
    return row


def add_bias(row: FloatRow, ids: Ids, values: FloatRow) -> None:
    """row[ids] += values; every id occurs once."""
    row[ids] += values


def apply_mask(row: FloatRow, mask: npt.NDArray[np.uint32]) -> None:
    """Sets what the bit mask does not allow to -inf."""
    allowed = np.unpackbits(mask.astype("<u4", copy=False).view(np.uint8), count=len(row), bitorder="little")
    row[allowed == 0] = -np.inf


def penalize(row: FloatRow, params: SamplingParams, seen_ids: Ids, seen_counts: Ids) -> None:
    """Repetition counts prompt and output; frequency and presence the output only (vLLM, OpenAI)."""
    if not len(seen_ids):
        return
    values = row[seen_ids]
    repetition = np.float32(params.repetition_penalty)
    with np.errstate(over="ignore"):
        values = np.where(values > 0, values / repetition, values * repetition)
        values = values - np.float32(params.frequency_penalty) * seen_counts.astype(np.float32)
        values = values - np.float32(params.presence_penalty) * (seen_counts > 0).astype(np.float32)
    row[seen_ids] = values


def kept_ids(row: FloatRow, peak: np.float32, params: SamplingParams) -> IdRow:
    """Token ids that min-p, then top-k, then top-p leave, ascending. The best token always stays."""
    ids = np.arange(len(row))
    if params.min_p > 0.0:
        ids = np.flatnonzero(scaled_logits(row, peak, params.temperature) >= min_p_limit(params))
    if 0 < params.top_k < len(ids):
        ids = np.sort(ids[leading(row[ids], params.top_k)])
    if params.top_p < 1.0:
        ids = np.sort(ids[_nucleus(row[ids], peak, params)])
    return ids


def min_p_limit(params: SamplingParams) -> np.float32:
    """The least scaled logit that min-p keeps: p >= min_p * p_max is (logit - peak) / temperature >= log(min_p)."""
    return np.float32(math.log(params.min_p))


def _nucleus(logits: FloatRow, peak: np.float32, params: SamplingParams) -> IdRow:
    """Indices of the fewest best tokens whose weights reach top_p of the whole."""
    weights = softmax_weights(scaled_logits(logits, peak, params.temperature))
    limit = params.top_p * float(weights.sum())
    count = 256  # most nuclei are smaller; ranking all of a large vocabulary is the slow way
    while True:
        order = leading(logits, count)
        through = np.cumsum(weights[order])
        num_kept = int(np.count_nonzero(through - weights[order] < limit))
        if num_kept < count or count >= len(logits):
            return order[:num_kept]
        count *= 8


def draw(row: FloatRow, peak: np.float32, ids: IdRow, temperature: float, u: float) -> int:
    """The token of `ids` (ascending) whose share of the weights holds u in [0, 1)."""
    through = np.cumsum(softmax_weights(scaled_logits(row[ids], peak, temperature)))
    total = float(through[-1])
    target = min(math.floor(u * total), total - 1.0)
    return int(ids[np.searchsorted(through, target, side="right")])


def choose(row: FloatRow, params: SamplingParams, u: float) -> int:
    """A token id from edited logits [V], or NO_TOKEN_LEFT, or NOT_FINITE."""
    best = int(row.argmax())  # the first NaN, if there is one
    if row[best] == -np.inf:
        return NO_TOKEN_LEFT
    if not np.isfinite(row[best]):
        return NOT_FINITE
    if params.greedy:
        return best
    return draw(row, row[best], kept_ids(row, row[best], params), params.temperature, u)
