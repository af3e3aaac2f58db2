"""Log-probabilities of the model's own distribution: before bias, penalties, temperature and truncation.

log p(t) = (l_t - l_max) - log(sum of exp(l - l_max)), the sum being that of `weights.py`: within 1e-5 of float64.
"""

from __future__ import annotations

import numpy as np

from trtdecode.request import TokenLogprob
from trtdecode.sampling.weights import FloatRow, leading, log_of_sum, scaled_logits, softmax_weights


def row_logprob(row: FloatRow, token_id: int, num_top: int) -> TokenLogprob:
    """The chosen token's log-probability in logits [V] (finite peak), its rank, and the `num_top` best.

    Tokens that the model itself excludes (-inf) are never among the best. Of equal logits the lowest id ranks first,
    as everywhere in sampling.
    """
    peak = row.max()
    log_sum = log_of_sum(float(softmax_weights(scaled_logits(row, peak, 1.0)).sum()))

    def logprob(token: int) -> float:
        return float(row[token]) - float(peak) - log_sum

    chosen = row[token_id]
    rank = 1 + int(np.count_nonzero(row > chosen)) + int(np.count_nonzero(row[:token_id] == chosen))
    best = leading(row, num_top).tolist() if num_top else []
    top = tuple((token, logprob(token)) for token in best if row[token] > -np.inf)
    return TokenLogprob(token_id, logprob(token_id), rank, top)
