"""Log-probabilities of the model's own distribution: before bias, penalties, temperature and truncation.

log p(t) = (l_t - l_max) - log(sum of exp(l - l_max)), the sum being that of `weights.py`: within 1e-5 of float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trtdecode.request import TokenLogprob
from trtdecode.sampling.weights import FloatRow, leading, log_of_sum, softmax_weights


def row_logprob(row: FloatRow, token_id: int, num_top: int) -> TokenLogprob:
    """The chosen token's log-probability in logits [V] (finite peak), its rank, and the `num_top` best.

    Of equal logits the lowest id ranks first, as everywhere in sampling.
    """
    peak = row.max()
    log_sum = log_of_sum(float(softmax_weights(row - peak).sum()))

    def logprob(token: int) -> float:
        return float(row[token]) - float(peak) - log_sum

    chosen = row[token_id]
    rank = 1 + int(np.count_nonzero(row > chosen)) + int(np.count_nonzero(row[:token_id] == chosen))
    top = tuple((token, logprob(token)) for token in leading(row, num_top).tolist()) if num_top else ()
    return TokenLogprob(token_id, logprob(token_id), rank, top)


def rows_logprobs(logits: npt.NDArray[np.float32], token_ids: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """`row_logprob` of token_ids[i] under row i of logits [P, V].

    For prompt logprobs, row i is the model's output after prompt token i, and token_ids[i] is prompt token i + 1.
    """
    return [row_logprob(row, token, num_top) for row, token in zip(logits, token_ids, strict=True)]
